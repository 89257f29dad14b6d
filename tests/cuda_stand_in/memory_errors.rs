//! A program that makes the memory error that its argument names.
//!
//! `tests/cuda/memory.rs` builds it against the stand-ins and expects a report of each error.

use std::{
    env,
    ffi::{CString, c_char, c_int, c_uint, c_void},
    process::ExitCode,
    ptr,
};

type Pointer = *mut c_void;

unsafe extern "C" {
    fn cuInit(flags: c_uint) -> c_int;
    fn cuMemAlloc_v2(address: *mut usize, size: usize) -> c_int;
    fn cuMemFree_v2(address: usize) -> c_int;
    fn cuMemFreeAsync(address: usize, stream: usize) -> c_int;
    fn cuMemcpyHtoDAsync_v2(to: usize, from: usize, length: usize, stream: usize) -> c_int;
    fn cuMemcpyDtoHAsync_v2(to: usize, from: usize, length: usize, stream: usize) -> c_int;
    fn cuMemcpyDtoDAsync_v2(to: usize, from: usize, length: usize, stream: usize) -> c_int;
    fn cuStreamSynchronize(stream: usize) -> c_int;
    fn cuModuleLoadData(module: *mut Pointer, image: *const c_char) -> c_int;
    fn cuModuleGetFunction(function: *mut Pointer, module: Pointer, name: *const c_char) -> c_int;
    fn cuLaunchKernel(
        function: Pointer,
        gx: c_uint,
        gy: c_uint,
        gz: c_uint,
        bx: c_uint,
        by: c_uint,
        bz: c_uint,
        shared: c_uint,
        stream: usize,
        params: *const *const c_void,
        extra: *const c_void,
    ) -> c_int;
    fn nvrtcCreateProgram(
        program: *mut Pointer,
        source: *const c_char,
        name: *const c_char,
        headers: c_int,
        texts: *const *const c_char,
        names: *const *const c_char,
    ) -> c_int;
    fn nvrtcCompileProgram(program: Pointer, options: c_int, texts: *const *const c_char) -> c_int;
    fn nvrtcGetPTXSize(program: Pointer, size: *mut usize) -> c_int;
    fn nvrtcGetPTX(program: Pointer, to: *mut u8) -> c_int;
}

const SOURCE: &str = r#"extern "C" __global__ void __launch_bounds__(32) shift(int *to, int const *from, int by, int divisor) {
    to[threadIdx.x] = from[(int)threadIdx.x + by] / divisor;
}"#;
const STREAM: usize = 0;
const COUNT: usize = 32;
const BYTES: usize = COUNT * 4;

fn check(status: c_int) {
    if status != 0 {
        std::process::exit(3);
    }
}

fn allocate(size: usize) -> usize {
    let mut address = 0;
    check(unsafe { cuMemAlloc_v2(&mut address, size) });
    address
}

fn upload(to: usize, values: &[i32], bytes: usize) {
    check(unsafe { cuMemcpyHtoDAsync_v2(to, values.as_ptr() as usize, bytes, STREAM) });
}

fn kernel() -> Pointer {
    let source = CString::new(SOURCE).expect("no zero");
    let (mut program, mut module, mut function) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let mut size = 0;
    unsafe {
        check(nvrtcCreateProgram(&mut program, source.as_ptr(), ptr::null(), 0, ptr::null(), ptr::null()));
        check(nvrtcCompileProgram(program, 0, ptr::null()));
        check(nvrtcGetPTXSize(program, &mut size));
        let mut image = vec![0; size];
        check(nvrtcGetPTX(program, image.as_mut_ptr()));
        check(cuModuleLoadData(&mut module, image.as_ptr().cast()));
        check(cuModuleGetFunction(&mut function, module, c"shift".as_ptr()));
    }
    function
}

/// Computes `to[i] = from[i + by] / divisor` for 32 `i`.
fn shift(kernel: Pointer, to: usize, from: usize, by: i32, divisor: i32) {
    let params: [*const c_void; 4] =
        [(&raw const to).cast(), (&raw const from).cast(), (&raw const by).cast(), (&raw const divisor).cast()];
    check(unsafe { cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, STREAM, params.as_ptr(), ptr::null()) });
}

fn main() -> ExitCode {
    let error = env::args().nth(1).unwrap_or_default();
    check(unsafe { cuInit(0) });
    let kernel = kernel();
    let (a, b) = (allocate(BYTES), allocate(BYTES));
    let ones: Vec<i32> = vec![1; COUNT];
    let mut result = vec![0; COUNT];
    upload(a, &ones, BYTES);
    check(unsafe { cuStreamSynchronize(STREAM) });
    match error.as_str() {
        "none" => shift(kernel, b, a, 0, 1),
        "host-read" => result[0] = unsafe { ptr::read_volatile(a as *const i32) },
        "host-write" => unsafe { ptr::write_volatile(a as *mut i32, 2) },
        "upload-out-of-bounds" => upload(a + 4, &ones, BYTES),
        "download-out-of-bounds" => {
            check(unsafe { cuMemcpyDtoHAsync_v2(result.as_mut_ptr() as usize, a + 4, BYTES, STREAM) });
        }
        "copy-out-of-bounds" => check(unsafe { cuMemcpyDtoDAsync_v2(b, a, BYTES + 4, STREAM) }),
        "kernel-out-of-bounds" => shift(kernel, b, a, 4096, 1),
        "kernel-after-free" => {
            check(unsafe { cuMemFreeAsync(a, STREAM) });
            shift(kernel, b, a, 0, 1);
        }
        "copy-after-free" => {
            check(unsafe { cuMemFree_v2(a) });
            check(unsafe { cuMemcpyDtoDAsync_v2(b, a, BYTES, STREAM) });
        }
        "free-twice" => {
            check(unsafe { cuMemFree_v2(a) });
            check(unsafe { cuMemFree_v2(a) });
        }
        "division-by-zero" => shift(kernel, b, a, 0, 0),
        _ => return ExitCode::from(2),
    }
    check(unsafe { cuMemcpyDtoHAsync_v2(result.as_mut_ptr() as usize, b, BYTES, STREAM) });
    println!("{}", result.iter().sum::<i32>());
    ExitCode::SUCCESS
}
