//! A test kernel that is compiled, loaded and run on a device before CubeCL uses it.
//!
//! CubeCL reports a kernel that does not compile, load or start only when a dependent result is read, long
//! after the cause. The error of this test names the step that failed.

use super::{CudaSite, Toolkit, device};
use crate::{Error, Result};
use cudarc::driver::{
    DriverError,
    result::{self, memcpy_dtoh_async, memcpy_htod_async},
    sys::cudaError_enum as Status,
};
use cudarc::nvrtc;
use std::{
    collections::BTreeMap,
    ffi::{CStr, CString, c_char, c_void},
    mem,
    sync::{Mutex, PoisonError},
};

/// A kernel that reads, computes and writes in several blocks.
const SOURCE: &CStr = c"extern \"C\" __global__ void burn_ddp_probe(const float* input, float* output) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    output[i] = input[i] * 2.0f + (float)i;
}
";
const NAME: &CStr = c"burn_ddp_probe";
const BLOCKS: u32 = 4;
const THREADS: u32 = 64;
const ELEMENTS: usize = (BLOCKS * THREADS) as usize;

/// Runs a small kernel on a GPU, once per process, verifies its output, and prepares the GPU's queue of operations. Must be
/// called before other threads use the GPU.
///
/// # Errors
/// If a step fails, with NVRTC's log or the driver's error, or an element is wrong. The error names the step
/// or element.
pub fn probe(index: usize) -> Result<()> {
    static DONE: Mutex<BTreeMap<usize, Result<()>>> = Mutex::new(BTreeMap::new());
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    done.entry(index).or_insert_with(|| run(index)).clone()
}

fn run(index: usize) -> Result<()> {
    let fail = |reason: String| Error::Device { device: format!("cuda:{index}"), reason };
    let toolkit = Toolkit::get()?;
    let image = compile(index, toolkit).map_err(fail)?;
    CudaSite::new(index)?.enter()?;
    let input: Vec<f32> = (0..ELEMENTS).map(|i| i as f32 * 0.25 - 8.0).collect();
    let output = execute(&image, &input).map_err(|(what, error)| fail(failed(what, error)))?;
    compare(&input, &output).map_err(fail)?;
    kernels::cuda::prepare(index);
    Ok(())
}

/// Compiles the kernel to PTX in the way of CubeCL.
fn compile(index: usize, toolkit: &Toolkit) -> Result<Vec<c_char>, String> {
    let architecture = architecture(index).map_err(|error| error.to_string())?;
    let options = [
        format!("--gpu-architecture={architecture}"),
        format!("--include-path={}", toolkit.include.display()),
    ];
    let version = toolkit.nvrtc;
    let failed = |reason: String| {
        format!("NVRTC {version} does not compile the probe kernel for {architecture}: {reason}")
    };
    let program =
        nvrtc::result::create_program(SOURCE, None).map_err(|error| failed(format!("{:?}", error.0)))?;
    // SAFETY: the program is alive until it is destroyed below.
    let compiled = unsafe {
        match nvrtc::result::compile_program(program, &options) {
            Ok(()) => nvrtc::result::get_ptx(program).map_err(|error| format!("{:?}", error.0)),
            Err(error) => Err(log(program).unwrap_or_else(|| format!("{:?}", error.0))),
        }
    };
    // SAFETY: it is not used any more. An error only leaks memory.
    let _ = unsafe { nvrtc::result::destroy_program(program) };
    compiled.map_err(failed)
}

/// NVRTC's log of a program, in one line.
///
/// # Safety
/// The program must be alive.
unsafe fn log(program: nvrtc::sys::nvrtcProgram) -> Option<String> {
    // SAFETY: as above.
    let log = unsafe { nvrtc::result::get_program_log(program) }.ok()?;
    let bytes: Vec<u8> = log.iter().map(|letter| *letter as u8).take_while(|byte| *byte != 0).collect();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).take(3).collect();
    (!lines.is_empty()).then(|| lines.join(" "))
}

/// The architecture that CubeCL compiles for, such as `sm_90a`.
fn architecture(index: usize) -> Result<String> {
    let version = super::architecture(device(index)?)?;
    Ok(format!("sm_{version}{}", if version >= 90 { "a" } else { "" }))
}

type ProbeResult<T> = Result<T, (&'static str, DriverError)>;

/// Runs the kernel on the current device.
fn execute(image: &[c_char], input: &[f32]) -> ProbeResult<Vec<f32>> {
    let step = |what| move |error| (what, error);
    let bytes = mem::size_of_val(input);
    let mut output = vec![f32::NAN; input.len()];
    // SAFETY: the image is PTX that ends in a zero; the memory has the sizes that the copies and the kernel
    // use, and everything is waited for before it is freed.
    unsafe {
        let module = result::module::load_data(image.as_ptr().cast()).map_err(step("load"))?;
        let module = Owned(module, result::module::unload);
        let function = result::module::get_function(module.0, CString::from(NAME)).map_err(step("load"))?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        let stream = Owned(stream.map_err(step("create a stream for"))?, result::stream::destroy);
        let allocate =
            || Ok(Owned(result::malloc_sync(bytes).map_err(step("allocate memory for"))?, result::free_sync));
        let memory = [allocate()?, allocate()?];
        let mut arguments = memory.each_ref().map(|memory| (&raw const memory.0).cast_mut().cast::<c_void>());
        memcpy_htod_async(memory[0].0, input, stream.0).map_err(step("copy the input of"))?;
        result::launch_kernel(function, (BLOCKS, 1, 1), (THREADS, 1, 1), 0, stream.0, &mut arguments)
            .map_err(step("launch"))?;
        memcpy_dtoh_async(&mut output, memory[1].0, stream.0).map_err(step("copy the output of"))?;
        result::stream::synchronize(stream.0).map_err(step("run"))?;
    }
    Ok(output)
}

fn failed(what: &str, DriverError(status): DriverError) -> String {
    let advice = match status {
        Status::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => "; NVRTC is newer than the driver",
        Status::CUDA_ERROR_OUT_OF_MEMORY => "; other processes hold the GPU's memory (see nvidia-smi)",
        _ => "; does nvidia-smi work?",
    };
    format!("cannot {what} the probe kernel: {status:?}{advice}")
}

fn compare(input: &[f32], output: &[f32]) -> Result<(), String> {
    // Every product and sum is exact.
    let expected = input.iter().enumerate().map(|(i, value)| value * 2.0 + i as f32);
    let wrong = expected.zip(output).enumerate().find(|(_, (expected, found))| expected != *found);
    wrong.map_or(Ok(()), |(i, (expected, found))| {
        Err(format!(
            "the probe kernel computes {found} in element {i} of {}, and the CPU {expected}; the GPU or its driver is \
             broken",
            output.len()
        ))
    })
}

/// A resource of the driver, which is released when it is dropped.
struct Owned<T: Copy>(T, unsafe fn(T) -> Result<(), DriverError>);

impl<T: Copy> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: nothing uses the resource any more: the kernel has ended, or the device is lost. An error cannot be
        // handled.
        let _ = unsafe { (self.1)(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_element_is_named() {
        let input = [1.0, 2.0, 3.0];
        assert_eq!(compare(&input, &[2.0, 5.0, 8.0]), Ok(()));
        let error = compare(&input, &[2.0, 5.0, f32::NAN]).unwrap_err();
        assert!(error.contains("computes NaN in element 2 of 3, and the CPU 8"), "{error}");
    }
}
