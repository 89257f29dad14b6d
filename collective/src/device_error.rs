//! Device errors of CubeCL, in one line.

use crate::{Error, Result, health};
#[cfg(feature = "cuda")]
use burn::backend::{CubeDevice, DispatchDevice};
use burn::tensor::{Device, Tensor, TensorData, kind::Basic};
use std::{
    any::Any,
    fmt::{Debug, Display},
};

/// Beginning of CubeCL's message for insufficient device memory.
const NO_MEMORY: &str = "out of device memory";
/// End of CubeCL's message about a kernel whose memory could not be allocated.
const NOT_ALLOCATED: &str = "Memory location was never initialized";

/// Reads a tensor's values.
///
/// # Errors
/// [`Error::Device`] if computing this tensor or earlier work failed, or the device dropped work: see
/// [`health`].
pub fn read_data<const D: usize, K: Basic>(tensor: Tensor<D, K>) -> Result<TensorData> {
    let device = name(&tensor.device());
    let data = tensor.try_into_data();
    // The read has completed all earlier work of the device.
    health::check()?;
    data.map_err(|error| Error::Device { device, reason: cause(&error) })
}

/// Name of a device in messages, such as `cuda:0`.
pub fn name(device: &Device) -> String {
    let device = if device.is_autodiff() { device.clone().inner() } else { device.clone() };
    match device.as_dispatch() {
        #[cfg(feature = "cuda")]
        DispatchDevice::Cube(CubeDevice::Cuda(cuda)) => format!("cuda:{}", cuda.index),
        other => format!("{other:?}"),
    }
}

/// The cause of a device's error.
///
/// CubeCL prints a chain of a dozen lines: effects first, then the cause, then a backtrace. If several
/// failures are reported at once, the first is the cause of the others.
pub fn cause(error: &(impl Display + Debug)) -> String {
    let (short, long) = (error.to_string(), format!("{error:?}"));
    // The errors differ in which format prints the chain.
    let text = if !short.contains("Caused by") && long.contains("Caused by") { long } else { short };
    let chain = text.lines().map(str::trim).take_while(|line| !is_end(line));
    let causes: Vec<&str> = chain.filter(|line| !line.is_empty() && !line.starts_with("Caused by")).collect();
    let compiler = causes.iter().find(|line| line.contains("): error"));
    let cause = compiler.or(causes.last()).map_or(text.as_str(), |cause| cause);
    let cause = if cause.ends_with(NOT_ALLOCATED) { NO_MEMORY } else { cause };
    let advice = match cause.starts_with(NO_MEMORY) {
        true => "; use a smaller batch, let --auto-batch choose it, or end other programs on the device",
        false => "",
    };
    format!("{cause}{advice}")
}

/// Whether a device of this process ran out of memory.
pub fn is_out_of_memory(error: &Error) -> bool {
    matches!(error.cause(), Error::Device { reason, .. } if reason.contains(NO_MEMORY))
}

/// Whether a line of CubeCL's report begins its backtrace, or the source of a kernel that does not compile.
fn is_end(line: &str) -> bool {
    let frame = line.split_once(": ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
    frame || ["Backtrace", "No backtrace", "Asked at", "[Source]"].iter().any(|start| line.starts_with(start))
}

/// Message of a panic, if any.
pub fn panic_text(payload: &(dyn Any + Send)) -> Option<&str> {
    payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied())
}

/// A panic's message in one line; the cause if it reports a device's error.
pub fn cause_of_panic(message: &str) -> String {
    if message.contains("Caused by") {
        return cause(&message);
    }
    let lines: Vec<&str> = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() { "a panic without a message".into() } else { lines.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_the_last_of_the_first_chain() {
        let chain = "An error happened during execution\nCaused by:\n  Several failures at once\nCaused by:\n  \
            Unable to load the PTX: DriverError(CUDA_ERROR_INVALID_IMAGE)\nBacktrace:\nNo backtrace available\n\
            Caused by:\n  something that followed";
        assert_eq!(cause(&chain), "Unable to load the PTX: DriverError(CUDA_ERROR_INVALID_IMAGE)");
        let full = "Several failures at once\nCaused by:\n  An IO error happened\nCaused by:\n  \
            out of device memory allocating 8 bytes\n";
        for backtrace in ["No backtrace available\nAsked at:\n", "   0: std::backtrace\n     at lib.rs"] {
            assert!(
                cause(&format!("{full}{backtrace}"))
                    .starts_with("out of device memory allocating 8 bytes; use")
            );
        }
        let compiler = "A compilation failed\nCaused by:\n  [Compilation Error] \n    a.cu(3): warning: unused\n    \
            a.cu(7): error: no such type\n    1 error detected\n[Source]  \n__global__ void a() {\n}\nBacktrace:\n";
        assert_eq!(cause(&compiler), "a.cu(7): error: no such type");
        assert_eq!(cause(&"one line"), "one line");
        assert_eq!(cause(&""), "");
        assert_eq!(cause_of_panic(chain), cause(&chain));
        assert_eq!(cause_of_panic("\n  not found.\n  Install it.\n"), "not found. Install it.");
    }
}
