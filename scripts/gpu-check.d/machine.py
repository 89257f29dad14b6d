"""gpu-check: programs, data, sizes, and the paths of CUDA's libraries on this machine."""
import glob
import gzip
import os
import random
import shutil
import socket
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# The data set: a folder with MNIST's four files. The tolerances of losses are for its first images.
MNIST = next(filter(os.path.isdir, (os.path.join(ROOT, folder) for folder in (
    "mnist", "examples/mnist_ddp/subset"))), "mnist")
WORK = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "burn-ddp/gpu-check")
KERNELS = os.path.join(WORK, "kernels")


class Machine:
    def __init__(self, program):
        programs = [program] if program else [os.path.join(ROOT, folder, "burn-ddp")
                                              for folder in ("bin", "target/release", "target/debug")]
        self.burn_ddp = next((path for path in programs if os.access(path, os.X_OK)), None)
        if not self.burn_ddp:
            sys.exit(f"gpu-check: {programs[-1]} is not an executable; build it: cargo build --release")
        folder = os.path.dirname(os.path.abspath(self.burn_ddp))
        self.mnist, self.char_gpt, self.image_folder = (
            next(filter(os.path.exists, (f"{folder}/{name}", f"{folder}/examples/{name}")), None)
            for name in ("mnist_ddp", "char_gpt", "image_folder"))
        if not self.mnist:
            sys.exit(f"gpu-check: mnist_ddp is not beside {self.burn_ddp}; build it: cargo build --release --example mnist_ddp")
        self.device = os.environ.get("GPU_CHECK_DEVICE", "cuda")
        self.small = self.device == "cpu" or os.environ.get("GPU_CHECK_SMALL") == "1"
        self.real = self.device == "cuda" and not self.small
        self.flags = ["--device", self.device, "--transport", "nccl" if self.device == "cuda" else "auto"]
        self.shipped = os.path.join(ROOT, "kernels.bundle")
        self.has_kernels = bool(output([self.burn_ddp, "kernels", "--help"]))
        # Flags of a training of mnist_ddp that can be compared.
        self.plain = ["--data-dir", MNIST, "--dropout", 0, "--scale-lr", "none", "--no-shuffle", "--progress", "plain"]
        shutil.rmtree(os.path.join(WORK, "runs"), ignore_errors=True)
        os.makedirs(os.path.join(WORK, "runs"))
        find_libraries()
        os.environ["BURN_DDP_KERNEL_CACHE"] = KERNELS
        self.devices = output([self.burn_ddp, "devices"])
        self.gpus = [line.split()[0] for line in self.devices.splitlines() if line.startswith("cuda:")]

    def describe(self, report):
        """Writes what the machine has."""
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        torch = "import torch; print(torch.__version__, 'CUDA', torch.version.cuda, torch.cuda.is_available())"
        report.data.update(version=output([self.burn_ddp, "--version"]), machine=os.uname().nodename,
                           gpu=output(query) or "no nvidia-smi", devices=self.devices.splitlines(),
                           pytorch=output([sys.executable, "-c", torch]) or "no PyTorch")
        for name in ("date", "version", "machine", "gpu", "pytorch"):
            report.say(f"{name:<10}{report.data[name]}")
        for line in self.devices.splitlines():
            report.say("  " + line)
        report.say()

    def run_folder(self, name):
        folder = os.path.join(WORK, "runs", name.replace(" ", "-"))
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def images(self, count):
        """A folder with `count` training images: MNIST's first ones, repeated."""
        folder = os.path.join(WORK, f"images-{count}")
        if os.path.exists(folder):
            return folder
        os.makedirs(folder + ".part", exist_ok=True)
        for part, repeats in (("train", True), ("t10k", False)):
            for kind, header, size in (("images-idx3", 16, 784), ("labels-idx1", 8, 1)):
                with gzip.open(os.path.join(MNIST, f"{part}-{kind}-ubyte.gz")) as file:
                    head, data = bytearray(file.read(header)), file.read()
                if repeats:
                    data = (data * (count * size // len(data) + 1))[:count * size]
                    head[4:8] = count.to_bytes(4, "big")
                with open(os.path.join(folder + ".part", f"{part}-{kind}-ubyte"), "wb") as file:
                    file.write(head + data)
        os.rename(folder + ".part", folder)
        return folder

    def text(self, characters):
        """A file of random characters, all of which occur."""
        path = os.path.join(WORK, f"text-{characters}")
        if not os.path.exists(path):
            with open(path, "w") as file:
                file.write("".join(random.Random(1).choices([chr(code) for code in range(32, 97)], k=characters)))
        return path


def output(command):
    """Standard output of a program; empty if it fails."""
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def folders(*names):
    """Existing folders of CUDA, in toolkits and in Python's packages."""
    nvidia = [os.path.join(path, "nvidia") for path in sys.path if path.endswith("-packages")]
    patterns = [os.path.join(root, name) for root in ["/usr/local/cuda", *nvidia] for name in names]
    return [path for pattern in patterns for path in sorted(glob.glob(pattern), reverse=True)]


def find_libraries():
    """Sets the variables by which NVRTC, CUDA's headers and NCCL are found."""
    libraries = folders("lib64", "cuda_nvrtc/lib", "cu1[0-9]/lib", "nccl/lib")
    paths = [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path]
    if paths or libraries:
        os.environ["LD_LIBRARY_PATH"] = ":".join([*paths, *libraries])
    roots = [path for path in folders("", "cu1[0-9]", "cuda_runtime")
             if os.path.exists(os.path.join(path, "include/cuda_runtime.h"))]
    if roots:
        os.environ.setdefault("CUDA_PATH", roots[0].rstrip("/"))


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
