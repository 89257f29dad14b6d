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
from training import column, kernels

PEER = os.path.join(ROOT, "benches/peers/torch_gpu.py")
NETWORKS = ("mnist", "char_gpt")
# Ways of training: a name and flags.
SINGLE = ("single", ["--mode", "single"])
NCCL = ("ddp, a world of one", ["--mode", "ddp", "--nproc-per-node", 1])
ON_DEVICE = ("data on device", ["--mode", "single", "--data-on-device"])
# Of PyTorch.
KINDS = ("eager", "compile", "reduce-overhead")


def sizes(machine):
    """Batches and their numbers of steps."""
    return {16: 8} if machine.small else {64: 400, 512: 200, 4096: 80}


def check(report, machine):
    report.part("kernels", 240, lambda run: fill_cache(run, machine))
    precisions = ("f32",) if machine.device == "cpu" else ("f32", "bf16")
    rates = {}

    def ours(network, precision, batch, way):
        values = report.part(f"{network} {precision} {batch} {way[0]}", 60,
                             lambda run: measure(run, machine, network, precision, batch, way))
        if values:
            rates.setdefault((network, precision, batch, way[0]), []).append(values["samples_per_second"])

    def compare(network, batch):
        # Alternating, so that both see the same state of the machine.
        for way in (SINGLE, NCCL, SINGLE, NCCL):
            ours(network, "f32", batch, way)
        alone, ddp = (rates.get((network, "f32", batch, way[0]), []) for way in (SINGLE, NCCL))
        if len(alone) == len(ddp) == 2:
            cost = round((sum(alone) / sum(ddp) - 1) * 100, 2)
            report.say(f"  {network} {batch}: NCCL in a world of one costs {cost} % (goal: at most 1 %)")
            report.data.setdefault("nccl_cost_percent", {})[f"{network} {batch}"] = cost

    # The smallest batch first, in case the time does not suffice: it shows the cost of launches and of NCCL.
    least, *others = sorted(sizes(machine))
    for network in NETWORKS:
        compare(network, least)
    tracer = {}
    report.part("tracer", 60, lambda run: tracer.update(path=compile_tracer(run, machine)))
    for network, precision, way in [*((network, precision, SINGLE) for network in NETWORKS for precision in precisions),
                                    ("mnist", "f32", NCCL), ("mnist", "f32", ON_DEVICE)]:
        report.part(f"trace {network} {precision} {least} {way[0]}", 60, lambda run: trace(
            run, machine, tracer, lambda steps: training(machine, network, precision, least, way, steps)[0]))
    for network in NETWORKS:
        report.part(f"trace PyTorch eager {network} f32 {least}", 60, lambda run: trace(
            run, machine, tracer, lambda steps: peer_command(machine, network, "f32", "eager", steps, [least])))

    for kind in KINDS[:1] if machine.small else KINDS:
        for network in NETWORKS:
            for precision in precisions:
                values = report.part(f"PyTorch {kind} {network} {precision}", 120,
                                     lambda run: peer(run, machine, network, precision, kind)) or {}
                for batch, rate in zip(sizes(machine), values.values()):
                    rates[network, precision, batch, kind] = [rate]
    for batch in others:
        for network in NETWORKS:
            compare(network, batch)
    for batch in sizes(machine):
        ours("mnist", "f32", batch, ON_DEVICE)
        for network in NETWORKS:
            if "bf16" in precisions:
                ours(network, "bf16", batch, SINGLE)
    report.say()
    for network, precision, batch, way in [key for key in rates if key[3] == SINGLE[0]]:
        rate = max(rates[network, precision, batch, way])
        peers = {kind: rates[network, precision, batch, kind][0] for kind in KINDS if (network, precision, batch, kind) in rates}
        report.say(f"{network} {precision} {batch}: {rate} samples/s" + "".join(
            f", {rate / peer:.2f} of PyTorch {kind}" for kind, peer in peers.items()))


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
    if not machine.has_kernels:
        raise Skipped("this burn-ddp has no command kernels")
    if not os.path.exists(KERNELS) and os.path.exists(machine.shipped):
        kernels(run, machine, "import", machine.shipped)
    run.all([(training(machine, network, precision, batch, SINGLE, 2)[0], {})
             for network in (NETWORKS if machine.char_gpt else NETWORKS[:1]) for precision in ("f32", "bf16")
             for batch in sizes(machine)])
    file = os.path.join(WORK, "all.bundle")
    kernels(run, machine, "export", file)
    # What the driver has compiled stays.
    for name in os.listdir(KERNELS):
        path = os.path.join(KERNELS, name)
        if name != "driver":
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    kernels(run, machine, "import", file)
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
    if not library and (machine.real or machine.device == "cpu"):
        raise Skipped("no tracer")
    totals, lengths = [], (4, 8) if machine.small else (20, 60)
    for steps in lengths:
        file = os.path.join(WORK, f"runs/trace-{steps}-{os.urandom(4).hex()}")
        # The emulated GPU counts launches itself, and writes them in the same form.
        variables = {"CUDA_INJECTION64_PATH": library} if library else {"CUDA_STAND_IN_COUNTS": file}
        run(command_of(steps), GPU_CHECK_TRACE=file, **variables)
        total = {}
        for path in glob.glob(file + ".*"):
            with open(path) as lines:
                for name, number in (line.rsplit(maxsplit=1) for line in lines):
                    total[name] = total.get(name, 0) + int(number)
        totals.append(total)
    few, many = totals
    if "launches" not in few:
        raise Failed("the tracer wrote nothing")
    return {name: round((many[name] - few[name]) / (lengths[1] - lengths[0]), 1)
            for name in ("launches", "copies", "fills", "busy_us") if name in many}


def peer_command(machine, network, precision, kind, steps, batches):
    return [sys.executable, PEER, "--network", network, "--precision", precision, "--kind", kind, "--steps", steps,
            "--device", "cuda" if machine.real else "cpu", *batches]


def peer(run, machine, network, precision, kind):
    """Rates of PyTorch by batch."""
    if subprocess.run([sys.executable, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode != 0:
        raise Skipped("no PyTorch")
    text = run(peer_command(machine, network, precision, kind, 4 if machine.small else 60, sizes(machine)))
    results = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {f"batch_{result['batch']}": result["samples_per_second"] for result in results}
