"""gpu-check speed: samples per second, launches and GPU time per step, compared with PyTorch."""
import glob
import json
import os
import shutil
import statistics
import subprocess
import sys

from machine import KERNELS, ROOT, WORK, folders
from report import Failed, Skipped
from training import column, import_kernels, kernels

PEER = os.path.join(ROOT, "benches/peers/torch_gpu.py")
NETWORKS = ("mnist", "char_gpt")
# Ways of training: a name and flags.
SINGLE = ("single", ["--mode", "single"])
NCCL = ("ddp, a world of one", ["--mode", "ddp", "--nproc-per-node", 1])
ON_DEVICE = ("data on device", ["--mode", "single", "--data-on-device"])
# Two runs of different length, whose difference is that of their steps.
COUNTED = (20, 60)


def sizes(machine):
    """Batches and their numbers of steps."""
    return {16: 8} if machine.small else {64: 400, 512: 200, 4096: 80}


def check(report, machine):
    precisions = ("f32",) if machine.device == "cpu" else ("f32", "bf16")
    report.part("kernels", 240, lambda run: fill_cache(run, machine))
    rates = {}

    def rate(name, limit, work):
        values = report.part(name, limit, work)
        return (values or {}).get("samples_per_second")

    # Alternating, so that both see the same state of the machine.
    for network in NETWORKS:
        for batch in sizes(machine):
            for way in (SINGLE, NCCL, SINGLE, NCCL):
                rates.setdefault((network, batch, way[0]), []).append(
                    rate(f"{network} f32 {batch} {way[0]}", 60, lambda run: measure(run, machine, network, "f32", batch, way)))
            alone, ddp = (rates[network, batch, way[0]] for way in (SINGLE, NCCL))
            if all(alone) and all(ddp):
                cost = (sum(alone) / sum(ddp) - 1) * 100
                report.say(f"  {network} {batch}: NCCL in a world of one costs {cost:.2f} % (goal: at most 1 %)")
                report.data.setdefault("nccl_cost_percent", {})[f"{network} {batch}"] = round(cost, 2)
    for batch in sizes(machine):
        rate(f"mnist f32 {batch} {ON_DEVICE[0]}", 60, lambda run: measure(run, machine, "mnist", "f32", batch, ON_DEVICE))
    for network in NETWORKS if "bf16" in precisions else ():
        for batch in sizes(machine):
            rate(f"{network} bf16 {batch} single", 60, lambda run: measure(run, machine, network, "bf16", batch, SINGLE))
    tracer = {}
    report.part("tracer", 60, lambda run: tracer.update(path=compile_tracer(run, machine)))
    for network, precision, way in [(network, precision, SINGLE) for network in NETWORKS for precision in precisions] + [
            ("mnist", "f32", NCCL), ("mnist", "f32", ON_DEVICE)]:
        report.part(f"trace {network} {precision} {min(sizes(machine))} {way[0]}", 60, lambda run: trace(
            run, machine, tracer, lambda steps: training(machine, network, precision, min(sizes(machine)), way, steps)))

    kinds = ("eager",) if machine.small else ("eager", "compile", "reduce-overhead")
    for kind in kinds:
        for network in NETWORKS:
            for precision in precisions:
                name = f"PyTorch {kind} {network} {precision}"
                values = report.part(name, 120, lambda run: peer(run, machine, network, precision, kind))
                for batch, speed in (values or {}).items():
                    rates[network, batch, name] = [speed]
    for network in NETWORKS:
        report.part(f"trace PyTorch eager {network} f32", 60, lambda run: trace(
            run, machine, tracer, lambda steps: peer_command(machine, network, "f32", "eager", steps)))
    if machine.real:
        report.part("all-reduce of device memory", 60, lambda run: {"sizes": [
            json.loads(line) for line in run([machine.burn_ddp, "bench", "device"]).splitlines() if line.startswith("{")]})


def training(machine, network, precision, batch, way, steps):
    """The command of a training, and its folder."""
    folder = machine.run_folder(f"speed {os.urandom(4).hex()}")
    samples = 16 * max(sizes(machine))
    if network == "mnist":
        data = [machine.mnist, "--data-dir", machine.images(samples), "--eval-limit", 10]
    elif machine.char_gpt:
        # A window has 64 characters, and 5 % of them are for the test.
        data = [machine.char_gpt, "--text", machine.text(70 * samples), "--test-split", 0.05, "--valid-split", 0,
                "--length", 0]
    else:
        raise Skipped("there is no char_gpt")
    transport = ["--transport", "nccl"] if way is NCCL and machine.device == "cuda" else []
    return [*data, "--device", machine.device, *way[1], *transport, "--precision", precision, "--batch-size", batch,
            "--epochs", steps, "--max-steps", steps, "--progress", "plain", "--run-dir", folder], folder


def measure(run, machine, network, precision, batch, way):
    """Trains; the rate is the median of the second half of the steps."""
    steps = sizes(machine)[batch]
    command, folder = training(machine, network, precision, batch, way, steps)
    run(command)
    rate = statistics.median(column(folder, "samples_per_second")[steps // 2:])
    return {"samples_per_second": round(rate), "step_ms": round(batch / rate * 1000, 3)}


def fill_cache(run, machine):
    """Compiles all kernels concurrently, and keeps them without the timings, which the load has distorted."""
    if machine.device != "cuda":
        raise Skipped("no GPU")
    if not os.path.exists(KERNELS) and os.path.exists(machine.shipped):
        import_kernels(run, machine, machine.shipped, KERNELS)
    kernels(run, machine, "export", os.path.join(WORK, "before"))  # fails early if the command is missing
    precisions = ("f32", "bf16")
    commands = [training(machine, network, precision, batch, SINGLE, 2)[0]
                for network in NETWORKS for precision in precisions for batch in sizes(machine)]
    run.all([(command, {}) for command in commands])
    file = os.path.join(WORK, "all")
    kernels(run, machine, "export", file)
    shutil.rmtree(KERNELS, ignore_errors=True)
    import_kernels(run, machine, file, KERNELS)
    return {"bytes": os.path.getsize(file)}


def compile_tracer(run, machine):
    """Builds the library that counts kernels, copies and fills with CUPTI."""
    if not machine.real:
        raise Skipped("no GPU")
    cupti = [library for folder in folders("extras/CUPTI/lib64", "lib64", "cu1[0-9]/lib", "cuda_cupti/lib")
             for library in glob.glob(os.path.join(folder, "libcupti.so*"))]
    compiler = next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if not cupti or not compiler:
        raise Skipped("no CUPTI" if compiler else "no C compiler")
    library = os.path.join(WORK, "libtracer.so")
    run([compiler, "-O2", "-shared", "-fPIC", "-o", library, os.path.join(os.path.dirname(__file__), "tracer.c"),
         cupti[0], f"-Wl,-rpath,{os.path.dirname(cupti[0])}", "-lpthread"])
    return library


def trace(run, machine, tracer, command_of):
    """Launches and GPU time per step: the difference of two runs of different length."""
    library = tracer.get("path")
    if not library and machine.device != "cuda":
        raise Skipped("no GPU")
    if not library and machine.real:
        raise Skipped("no tracer")
    totals = []
    for steps in COUNTED:
        command = command_of(steps)
        file = os.path.join(WORK, f"runs/trace-{os.urandom(4).hex()}")
        # The emulated GPU counts launches itself, and writes them in the same form.
        variables = {"CUDA_INJECTION64_PATH": library} if library else {}
        run(command, GPU_CHECK_TRACE=file, CUDA_STAND_IN_COUNTS=file, **variables)
        total = {}
        for path in glob.glob(glob.escape(file) + ".*"):
            with open(path) as lines:
                for line in lines:
                    name, number = line.rsplit(maxsplit=1)
                    total[name] = total.get(name, 0) + int(number)
        totals.append(total)
    few, many = totals
    steps = COUNTED[1] - COUNTED[0]
    values = {name: round((many[name] - few[name]) / steps, 1) for name in ("launches", "copies", "fills") if name in many}
    if not values:
        raise Failed("the tracer wrote nothing")
    if "busy_us" in many:
        values["gpu_ms"] = round((many["busy_us"] - few["busy_us"]) / steps / 1000, 4)
    return values


def peer_command(machine, network, precision, kind, steps, batches=None):
    device = "cuda" if machine.real else "cpu"
    return [sys.executable, PEER, "--network", network, "--precision", precision, "--kind", kind, "--device", device,
            "--steps", steps, *(batches or [min(sizes(machine))])]


def peer(run, machine, network, precision, kind):
    """Rates of PyTorch by batch."""
    if subprocess.run([sys.executable, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode != 0:
        raise Skipped("no PyTorch")
    steps = 6 if machine.small else 60
    text = run(peer_command(machine, network, precision, kind, steps, list(sizes(machine))))
    return {f"batch_{result['batch']}": result["samples_per_second"] for result in map(json.loads, text.splitlines())}
