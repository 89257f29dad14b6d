"""gpu-check correctness: losses against the CPU's, NVIDIA's memory checker, and memory over many epochs."""
import os
import shutil
import time

import speed
from machine import MNIST, output
from report import Failed, Skipped
from training import column, compare, world

# Trajectories: name, flags, global batch, steps and tolerance. Each tolerance is above the differences from the CPU's
# losses that TF32 causes, and below those of a learning rate that is 1 % too high and of statistics per rank
# (benches/results/tf32.md).
TRAJECTORIES = [
    ("plain", ["--lr", 0.005], 96, 12, 2e-3),
    ("sync-bn", ["--lr", 0.002, "--sync-bn"], 24, 6, 9.5e-4),
]


def check(report, machine):
    report.part("kernels", 240, lambda run: speed.fill_cache(run, machine))
    for name, flags, batch, steps, tolerance in TRAJECTORIES:
        train = [machine.mnist, *machine.plain, *flags, "--max-steps", steps, "--eval-limit", 16]
        reference = [*train, "--device", "cpu", "--mode", "single", "--batch-size", batch, "--run-dir",
                     machine.run_folder(f"{name} cpu")]
        single = [*train, "--device", machine.device, "--mode", "single", "--batch-size", batch]
        dp = [*train, "--mode", "dp", "--device-ids", ",".join(devices(machine)), "--batch-size", batch]
        ddp = [*train, *machine.flags, "--mode", "ddp", "--batch-size", batch // 2]
        for way, command, size, variables in [("single", single, 0, {}), ("dp", dp, 0, {}), ("ddp", ddp, 2, {}),
                                              ("host waits", ddp, 2, {"BURN_DDP_HOST_SYNC": 1})]:
            report.part(f"{name} {way}", 120, lambda run: follow(
                run, machine, f"{name} {way}", command, size, variables, reference, tolerance))
    small = [machine.mnist, *machine.plain, "--network", "lenet", "--eval-limit", 16]
    report.part("sync-bn under stress", 120, lambda run: stress(run, machine, small))
    report.part("many sync-bn layers", 120, lambda run: many_layers(run, machine))
    train = [machine.mnist, *machine.flags, *machine.plain, "--mode", "ddp", "--nproc-per-node", 1, "--sync-bn",
             "--batch-size", 16, "--max-steps", 2, "--eval-limit", 16, "--run-dir", machine.run_folder("sanitizer")]
    for what, command in [("training", train),
                          ("collectives", [machine.burn_ddp, "check", "collectives", *machine.flags, "--ranks", 1])]:
        report.part(f"compute-sanitizer, {what}", 150, lambda run: sanitize(run, machine, command))
    report.part("memory over 20 epochs", 180, lambda run: epochs(run, machine))


def devices(machine):
    """Devices of dp mode: all GPUs, or two parts of the CPU."""
    return machine.gpus if machine.device == "cuda" else ["cpu:0", "cpu:1"]


def follow(run, machine, name, command, size, variables, reference, tolerance):
    """Trains, and compares the losses with those of the command `reference`."""
    if not os.path.exists(os.path.join(reference[-1], "summary.json")):
        run(reference)
    folder = machine.run_folder(name)
    command = [*command, "--run-dir", folder]
    # Tests replace a word by another one, to show that the comparison detects it.
    old, _, new = os.environ.get("GPU_CHECK_MISTAKE", "").partition(" ")
    command = [new if str(word) == old else word for word in command]
    run.all([(one, {**of_rank, **variables}) for one, of_rank in (world(command, size) if size else [(command, {})])])
    return compare(folder, reference[-1], tolerance)


def stress(run, machine, command):
    """Trains SyncBatchNorm with small buckets, and so with overlap, on two samples per rank."""
    folder = machine.run_folder("stress")
    run.all(world([*command, *machine.flags, "--mode", "ddp", "--sync-bn", "--batch-size", 2, "--bucket-cap-mb", 0.01,
                   "--first-bucket-mb", 0.01, "--lr", 0.001, "--timeout", 30, "--max-steps", 5 if machine.small else 300,
                   "--progress", "plain", "--run-dir", folder], 2))
    return {"steps": len(column(folder, "loss"))}


def many_layers(run, machine):
    """ResNet-20 on drawn shapes: 21 SyncBatchNorm layers."""
    if not machine.image_folder:
        raise Skipped("there is no image_folder")
    pictures = machine.run_folder("pictures")
    run([machine.image_folder, "shapes", pictures, "--count", 40 if machine.small else 200])
    return stress(run, machine, [machine.image_folder, "--data", pictures, "--blocks", 1 if machine.small else 3,
                                 "--epochs", 1])


def sanitize(run, machine, command):
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if not machine.real or not sanitizer:
        raise Skipped("no compute-sanitizer" if machine.real else "no GPU")
    # NCCL asks for kernels that its library lacks, and handles the error.
    run([sanitizer, "--error-exitcode", 9, "--report-api-errors", "no", *command])


def epochs(run, machine):
    """Memory of the GPU and of the process, and the accuracy, over 20 epochs."""
    folder = machine.run_folder("epochs")
    data = [MNIST, "--train-limit", 64, "--eval-limit", 16, "--batch-size", 16] if machine.small else [machine.images(61440)]
    process = run.start([machine.mnist, "--device", machine.device, "--mode", "single", "--progress", "plain", "--epochs", 20,
                         "--run-dir", folder, "--data-dir", *data])
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    # The largest values in epochs 3 to 7, and from epoch 16 on, in MiB.
    early, late = {}, {}
    while process.poll() is None:
        if time.monotonic() > run.deadline:
            raise Failed("20 epochs did not end in time")
        table = os.path.join(folder, "epochs.csv")
        done = sum(1 for _ in open(table)) - 1 if os.path.exists(table) else 0
        gpu = output(query) if machine.real else ""
        used = {"gpu": int(gpu)} if gpu.isdecimal() else {}
        try:
            with open(f"/proc/{process.pid}/statm") as file:
                used["process"] = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
        except (OSError, IndexError):
            pass  # it has just ended
        for values in [early] * (2 <= done < 7) + [late] * (done >= 15):
            values.update({name: max(value, values.get(name, 0)) for name, value in used.items()})
        time.sleep(0.1)
    if run.wait(process) != 0:
        raise Failed(run.text(process).strip().splitlines()[-1])
    accuracy = column(folder, "test_accuracy", "epochs.csv")[-1]
    for name, (part, fixed) in {"gpu": (0.02, 16), "process": (0.05, 64)}.items():
        if name in early and name in late and late[name] > early[name] * (1 + part) + fixed:
            raise Failed(f"memory of the {name} grew from {early[name]} to {late[name]} MiB")
    if machine.real and accuracy < 0.96:
        raise Failed(f"test accuracy {accuracy}")
    return {"early_mib": early, "late_mib": late, "test_accuracy": accuracy}
