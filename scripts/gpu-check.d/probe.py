"""Compiles, loads and runs one small kernel on cuda:0 with NVRTC and compares its output: probe.py plain|mma|barrier.

Each computes output[i] = 2 * input[i] + i: without headers, with tensor cores (mma.h), and with an asynchronous copy
and a barrier (cuda/barrier). CubeCL generates kernels of all three kinds.
"""
import ctypes
import os
import sys

PLAIN = r"""
extern "C" __global__ void probe(const float* input, float* output) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    output[i] = input[i] * 2.0f + (float)i;
}
"""
MMA = r"""
#include <cuda_fp16.h>
#include <mma.h>
extern "C" __global__ void probe(const float* input, float* output) {
    using namespace nvcuda;
    __shared__ __half twice[256], values[256];
    __shared__ float sums[256];
    for (int k = threadIdx.x; k < 256; k += blockDim.x) {
        int i = blockIdx.x * blockDim.x + k;
        twice[k] = __float2half(k % 17 == 0 ? 2.0f : 0.0f);
        values[k] = __float2half(k < blockDim.x ? input[i] : 0.0f);
        sums[k] = (float)i;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
        wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> b;
        wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
        wmma::load_matrix_sync(a, twice, 16);
        wmma::load_matrix_sync(b, values, 16);
        wmma::load_matrix_sync(c, sums, 16, wmma::mem_row_major);
        wmma::mma_sync(c, a, b, c);
        wmma::store_matrix_sync(sums, c, 16, wmma::mem_row_major);
    }
    __syncthreads();
    output[blockIdx.x * blockDim.x + threadIdx.x] = sums[threadIdx.x];
}
"""
BARRIER = r"""
#include <cuda/barrier>
extern "C" __global__ void probe(const float* input, float* output) {
    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
    __shared__ float values[64];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x == 0) init(&barrier, blockDim.x);
    __syncthreads();
    cuda::memcpy_async(values + threadIdx.x, input + i, sizeof(float), barrier);
    barrier.arrive_and_wait();
    output[i] = values[threadIdx.x] * 2.0f + (float)i;
}
"""
SOURCES = {"plain": PLAIN, "mma": MMA, "barrier": BARRIER}
BLOCKS, THREADS = 4, 64
COUNT = BLOCKS * THREADS
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_…


def load(*names):
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            pass
    sys.exit(f"none of {', '.join(names)} was found")


def check(what, status):
    if status != 0:
        sys.exit(f"{what} failed with status {status}")


def compile_kernel(source, architecture):
    nvrtc = load("libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12")
    root = os.environ.get("CUDA_PATH", "/usr/local/cuda")
    options = [f"--gpu-architecture={architecture}"]
    options += [f"--include-path={root}/{part}" for part in ["include", "include/cccl"]]
    options = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    check("nvrtcCreateProgram", nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), None, 0, None, None))
    if nvrtc.nvrtcCompileProgram(program, len(options), options) != 0:
        check("nvrtcGetProgramLogSize", nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        log = ctypes.create_string_buffer(size.value)
        check("nvrtcGetProgramLog", nvrtc.nvrtcGetProgramLog(program, log))
        sys.exit(f"does not compile for {architecture}: {' '.join(log.value.decode(errors='replace').split())[:250]}")
    check("nvrtcGetPTXSize", nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)))
    image = ctypes.create_string_buffer(size.value)
    check("nvrtcGetPTX", nvrtc.nvrtcGetPTX(program, image))
    return image


def main():
    kind = sys.argv[1]
    cuda = load("libcuda.so.1", "libcuda.so")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    check("cuInit", cuda.cuInit(0))
    check("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(device), 0))
    version = []
    for attribute in (MAJOR, MINOR):
        value = ctypes.c_int()
        check("cuDeviceGetAttribute", cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device))
        version.append(value.value)
    if kind != "plain" and version[0] < 7:
        print(f"compute capability {version[0]}.{version[1]} has no such kernels")
        return
    architecture = f"sm_{version[0]}{version[1]}" + ("a" if version[0] >= 9 else "")
    image = compile_kernel(SOURCES[kind], architecture)
    check("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context))
    module, function, stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    check("cuModuleLoadData", cuda.cuModuleLoadData(ctypes.byref(module), image))
    check("cuModuleGetFunction", cuda.cuModuleGetFunction(ctypes.byref(function), module, b"probe"))
    check("cuStreamCreate", cuda.cuStreamCreate(ctypes.byref(stream), 1))
    # Exact in half precision, including the products.
    values = (ctypes.c_float * COUNT)(*[i * 0.25 - 8.0 for i in range(COUNT)])
    result = (ctypes.c_float * COUNT)(*[float("nan")] * COUNT)
    size = ctypes.c_size_t(ctypes.sizeof(values))
    memory = [ctypes.c_uint64(), ctypes.c_uint64()]
    for pointer in memory:
        check("cuMemAlloc", cuda.cuMemAlloc_v2(ctypes.byref(pointer), size))
    check("upload", cuda.cuMemcpyHtoDAsync_v2(memory[0], values, size, stream))
    arguments = (ctypes.c_void_p * 2)(*[ctypes.addressof(pointer) for pointer in memory])
    check("cuLaunchKernel", cuda.cuLaunchKernel(function, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, arguments, None))
    check("download", cuda.cuMemcpyDtoHAsync_v2(result, memory[1], size, stream))
    check("cuStreamSynchronize", cuda.cuStreamSynchronize(stream))
    wrong = [i for i in range(COUNT) if result[i] != 2 * values[i] + i]
    if wrong:
        sys.exit(f"{len(wrong)} of {COUNT} elements are wrong, first {result[wrong[0]]} in element {wrong[0]}")
    print(f"{kind} on {architecture}: {COUNT} elements are right")


main()
