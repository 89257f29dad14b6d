//! A program that makes the mistake that its argument names.
//!
//! `tests/cuda/mistakes.rs` builds it against the stand-ins and expects a report of each mistake.

use std::{
    env,
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    process::ExitCode,
    ptr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

type Pointer = *mut c_void;

unsafe extern "C" {
    fn cuInit(flags: c_uint) -> c_int;
    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> c_int;
    fn cuCtxSetCurrent(context: usize) -> c_int;
    fn cuStreamCreate(stream: *mut usize, flags: c_uint) -> c_int;
    fn cuStreamDestroy_v2(stream: usize) -> c_int;
    fn cuEventCreate(event: *mut usize, flags: c_uint) -> c_int;
    fn cuEventRecord(event: usize, stream: usize) -> c_int;
    fn cuFuncSetAttribute(function: Pointer, attribute: c_int, value: c_int) -> c_int;
    fn cudaStandInPush(stream: usize, poll: extern "C" fn(Pointer) -> c_int, argument: usize) -> c_int;
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
/// The default stream of the current context.
const STREAM: usize = 0;
const MOST_SHARED: c_int = 8;
const COUNT: usize = 32;
const BYTES: usize = COUNT * 4;

fn check(status: c_int) {
    if status != 0 {
        eprintln!("status {status}");
        std::process::exit(3);
    }
}

fn context(device: c_int) -> usize {
    let mut context = 0;
    check(unsafe { cuDevicePrimaryCtxRetain(&mut context, device) });
    check(unsafe { cuCtxSetCurrent(context) });
    context
}

fn stream() -> usize {
    let mut stream = 0;
    check(unsafe { cuStreamCreate(&mut stream, 1) });
    stream
}

/// Work that ends when another rank has enqueued its part, as a collective does.
extern "C" fn collective(_: Pointer) -> c_int {
    c_int::from(PEER.load(Ordering::Relaxed))
}
static PEER: AtomicBool = AtomicBool::new(false);

/// Allocates while a collective is in progress, whose other rank is called afterwards.
fn allocate_before_the_peer() {
    check(unsafe { cudaStandInPush(STREAM, collective, 0) });
    thread::spawn(|| {
        thread::sleep(Duration::from_millis(500));
        eprintln!("the allocation waits for the collective");
        std::process::exit(4);
    });
    allocate(BYTES);
    PEER.store(true, Ordering::Relaxed);
}

fn allocate(size: usize) -> usize {
    let mut address = 0;
    check(unsafe { cuMemAlloc_v2(&mut address, size) });
    address
}

fn upload(to: usize, values: &[i32], bytes: usize) {
    check(unsafe { cuMemcpyHtoDAsync_v2(to, values.as_ptr() as usize, bytes, STREAM) });
}

fn kernel(source: &str, name: &CStr) -> Pointer {
    let source = CString::new(source).expect("no zero");
    let (mut program, mut module, mut function) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let mut size = 0;
    unsafe {
        check(nvrtcCreateProgram(&mut program, source.as_ptr(), ptr::null(), 0, ptr::null(), ptr::null()));
        check(nvrtcCompileProgram(program, 0, ptr::null()));
        check(nvrtcGetPTXSize(program, &mut size));
        let mut image = vec![0; size];
        check(nvrtcGetPTX(program, image.as_mut_ptr()));
        check(cuModuleLoadData(&mut module, image.as_ptr().cast()));
        check(cuModuleGetFunction(&mut function, module, name.as_ptr()));
    }
    function
}

/// Computes `to[i] = from[i + by] / divisor` for 32 `i`.
fn shift(kernel: Pointer, to: usize, from: usize, by: i32, divisor: i32) {
    let params: [*const c_void; 4] = [
        (&raw const to).cast(),
        (&raw const from).cast(),
        (&raw const by).cast(),
        (&raw const divisor).cast(),
    ];
    check(unsafe { cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, STREAM, params.as_ptr(), ptr::null()) });
}

/// Launches with these sizes, which are too large.
fn launch(kernel: Pointer, rows: u32, threads: u32, shared: u32, stream: usize) {
    let zero = [0_u64; 4];
    let params = zero.each_ref().map(|zero| ptr::from_ref(zero).cast::<c_void>());
    check(unsafe {
        cuLaunchKernel(kernel, 1, rows, 1, threads, 1, 1, shared, stream, params.as_ptr(), ptr::null())
    });
}

fn main() -> ExitCode {
    let error = env::args().nth(1).unwrap_or_default();
    check(unsafe { cuInit(0) });
    if error != "no-context" {
        context(0);
    }
    let kernel = match error.as_str() {
        "tensor-cores" => kernel(include_str!("product.cu"), c"product"),
        _ => kernel(SOURCE, c"shift"),
    };
    let (a, b) = (allocate(BYTES), allocate(BYTES));
    let ones: Vec<i32> = vec![1; COUNT];
    let mut result = vec![0; COUNT];
    upload(a, &ones, BYTES);
    check(unsafe { cuStreamSynchronize(STREAM) });
    match error.as_str() {
        "none" => shift(kernel, b, a, 0, 1),
        "tensor-cores" => {
            let params: [*const c_void; 1] = [(&raw const b).cast()];
            check(unsafe {
                cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 2048, STREAM, params.as_ptr(), ptr::null())
            });
        }
        "host-read" => result[0] = unsafe { ptr::read_volatile(a as *const i32) },
        "host-read-during-work" => {
            check(unsafe { cudaStandInPush(STREAM, collective, 0) });
            thread::sleep(Duration::from_millis(20));
            result[0] = unsafe { ptr::read_volatile(a as *const i32) };
        }
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
        "context-of-another-thread" => _ = thread::spawn(stream).join(),
        "stream-of-another-context" => {
            context(1);
            launch(kernel, 1, 32, 0, stream());
        }
        "event-of-another-context" => {
            let mut event = 0;
            check(unsafe { cuEventCreate(&mut event, 0) });
            context(1);
            check(unsafe { cuEventRecord(event, stream()) });
        }
        "destroyed-stream" => {
            let stream = stream();
            check(unsafe { cuStreamDestroy_v2(stream) });
            check(unsafe { cuStreamSynchronize(stream) });
        }
        "memory-of-another-device" => {
            context(1);
            let other = allocate(BYTES);
            context(0);
            shift(kernel, b, other, 0, 1);
        }
        "large-grid" => launch(kernel, 65_536, 32, 0, STREAM),
        "large-block" => launch(kernel, 1, 2048, 0, STREAM),
        "launch-bounds" => launch(kernel, 1, 64, 0, STREAM),
        "no-threads" => launch(kernel, 1, 0, 0, STREAM),
        "shared-memory-not-asked-for" => launch(kernel, 1, 32, 49_153, STREAM),
        "much-shared-memory" => check(unsafe { cuFuncSetAttribute(kernel, MOST_SHARED, 65_537) }),
        "allocation-in-a-collective" => allocate_before_the_peer(),
        _ => return ExitCode::from(2),
    }
    check(unsafe { cuMemcpyDtoHAsync_v2(result.as_mut_ptr() as usize, b, BYTES, STREAM) });
    println!("{}", result.iter().sum::<i32>());
    ExitCode::SUCCESS
}
