"""gpu-check start: devices, kernels, first and second start, collectives, ordering, and a killed rank."""
import os
import shutil
import sys
import time

import speed
from machine import KERNELS, WORK
from report import Failed, Skipped
from training import kernels, world


def check(report, machine):
    report.part("doctor", 30, lambda run: run([machine.burn_ddp, "doctor"]) and None)
    # CubeCL generates kernels of these kinds. The last two need more of CUDA's headers.
    for kind in ("plain", "mma", "barrier") if machine.device == "cuda" else ():
        probe = os.path.join(os.path.dirname(__file__), "probe.py")
        report.part(f"probe kernel {kind}", 60, lambda run: run([sys.executable, probe, kind]) and None)

    shutil.rmtree(KERNELS, ignore_errors=True)
    shipped = os.path.exists(machine.shipped)
    if shipped:
        report.part("first start with shipped kernels", 200, lambda run: shipped_start(run, machine))
    else:
        report.part("first start", 300, lambda run: start(run, machine, KERNELS))
    report.part("second start", 120, lambda run: start(run, machine, KERNELS))
    report.part("first start, tuned by an equal machine", 120, lambda run: tuned_start(run, machine))
    chain = ["--size", 64, "--milliseconds", 5, "--rounds", 5] if machine.small else []
    for size in (1, 2):
        for what, flags in (("collectives", []), ("ordering", chain)):
            command = [machine.burn_ddp, "check", what, *machine.flags, "--ranks", size, *flags]
            report.part(f"{what}, world of {size}", 60, lambda run: run.all(world(command, size)) and None)
    command = [machine.burn_ddp, "check", "collectives", *machine.flags, "--ranks", 1]
    report.part("collectives, host waits", 60, lambda run: run(command, BURN_DDP_HOST_SYNC=1) and None)
    report.part("a killed rank", 100, lambda run: kill_one(run, machine))
    if shipped:
        report.part("first start", 300, lambda run: start(run, machine, machine.run_folder("kernels")))
    # The other commands, or another machine, import them.
    report.part("kernels of the other commands", 250, lambda run: export(run, machine, report.path + ".bundle"))


def start(run, machine, cache):
    """Trains one step."""
    begun = time.monotonic()
    run([machine.mnist, "--device", machine.device, "--mode", "single", *machine.plain, "--train-limit", 128,
         "--eval-limit", 100, "--batch-size", 16 if machine.small else 64, "--max-steps", 1,
         "--run-dir", machine.run_folder("start")], BURN_DDP_KERNEL_CACHE=cache)
    files = [os.path.join(path, file) for path, _, names in os.walk(cache) for file in names]
    return {"start_seconds": round(time.monotonic() - begun, 1), "cache_bytes": sum(map(os.path.getsize, files))}


def shipped_start(run, machine):
    kernels(run, machine, "import", machine.shipped)
    return start(run, machine, KERNELS)


def tuned_start(run, machine):
    """Starts with an empty cache and the kernels and tuning results of the earlier starts."""
    if machine.device != "cuda":
        raise Skipped("no GPU")
    file, cache = os.path.join(WORK, "tuned.bundle"), machine.run_folder("tuned")
    kernels(run, machine, "export", file)
    kernels(run, machine, "import", file, cache, tuning=True)
    return start(run, machine, cache)


def kill_one(run, machine):
    """Kills one of two ranks after five steps. The other must end with an error."""
    folder = machine.run_folder("killed")
    command = [machine.mnist, *machine.flags, "--mode", "ddp", *machine.plain, "--eval-limit", 10, "--epochs", 1000,
               "--batch-size", 12 if machine.small else 24, "--run-dir", folder]
    ranks = [run.start(command, **variables) for command, variables in world(command, 2)]
    table = os.path.join(folder, "steps.csv")
    while not os.path.exists(table) or sum(1 for _ in open(table)) < 6:
        if time.monotonic() > run.deadline or any(rank.poll() is not None for rank in ranks):
            raise Failed("the ranks did not train five steps")
        time.sleep(0.1)
    ranks[1].kill()
    begun = time.monotonic()
    code, seconds = run.wait(ranks[0]), round(time.monotonic() - begun, 1)
    if code == 0:
        raise Failed("rank 0 ended as if nothing had happened")
    if seconds > 30:
        raise Failed(f"rank 0 ended {seconds} s after rank 1")
    return {"seconds_until_the_error": seconds}


def export(run, machine, file):
    if machine.device != "cuda":
        raise Skipped("no GPU")
    speed.fill_cache(run, machine)
    kernels(run, machine, "export", file)
    return {"file": os.path.basename(file), "bytes": os.path.getsize(file)}
