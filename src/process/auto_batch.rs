//! `--auto-batch`: a run whose batch does not fit into device memory starts again with half the batch.
//!
//! A device that ran out of memory has dropped work, and only the end of its process returns all of the memory. The
//! launcher therefore starts all ranks again; a program that is the only rank starts itself again. A variable of the
//! environment divides `--batch-size` and multiplies `--grad-accum-steps`, so that the global batch stays the same.

use anyhow::Error;
use collective::device_error::is_out_of_memory;
use std::env;

/// Environment variable with the divisor of `--batch-size`, which is the factor of `--grad-accum-steps`.
pub const DIVISOR: &str = "BURN_DDP_BATCH_DIVISOR";

/// Maximum number of restarts with half the batch. Only a program that ignores the divisor needs more.
pub const MAX_HALVINGS: u32 = 16;

/// The divisor of this process; 1 without [`DIVISOR`].
///
/// # Errors
/// If the variable is not a number from 1 to 2 to the power of [`MAX_HALVINGS`].
pub fn divisor() -> Result<usize, String> {
    let Ok(text) = env::var(DIVISOR) else { return Ok(1) };
    let most = 1 << MAX_HALVINGS;
    let divisor = text.parse().ok().filter(|divisor| (1..=most).contains(divisor));
    divisor
        .ok_or_else(|| format!("environment variable {DIVISOR}={text}: expected a number from 1 to {most}"))
}

/// Device memory does not suffice for a batch. The context of a device's error.
#[derive(Debug, thiserror::Error)]
pub enum BatchTooLarge {
    /// The program is to be started again with these values.
    #[error(
        "--batch-size {} does not fit into device memory; --batch-size {batch_size} --grad-accum-steps \
         {grad_accum_steps} has the same global batch", 2 * .batch_size
    )]
    Halve { batch_size: usize, grad_accum_steps: usize },
    /// An odd number of samples.
    #[error("--auto-batch: --batch-size {0} cannot be halved")]
    Odd(usize),
}

/// Adds to an error of insufficient device memory whether the batch can be halved. Other errors are unchanged.
pub fn explain(error: Error, batch_size: usize, grad_accum_steps: usize) -> Error {
    let is_full = error.chain().filter_map(|cause| cause.downcast_ref()).any(is_out_of_memory);
    match batch_size % 2 {
        _ if !is_full => error,
        0 => error.context(BatchTooLarge::Halve {
            batch_size: batch_size / 2,
            grad_accum_steps: 2 * grad_accum_steps,
        }),
        _ => error.context(BatchTooLarge::Odd(batch_size)),
    }
}

/// Whether the program is to be started again with half the batch.
pub fn halves_batch(error: &Error) -> bool {
    matches!(error.downcast_ref(), Some(BatchTooLarge::Halve { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_even_batch_without_memory_is_halved() {
        let failed =
            |reason: &str| collective::Error::Device { device: "cuda:1".into(), reason: reason.into() };
        let full = || Error::new(failed("out of device memory")).context("training");
        let halved = explain(full(), 48, 3);
        assert_eq!(
            format!("{halved:#}"),
            "--batch-size 48 does not fit into device memory; --batch-size 24 --grad-accum-steps 6 has the same \
             global batch: training: device cuda:1: out of device memory"
        );
        assert!(halves_batch(&halved.context("a program's")));
        for odd in [1, 45] {
            let error = explain(full(), odd, 1);
            assert!(!halves_batch(&error), "{error:#}");
            assert!(
                error.to_string().ends_with(&format!("--batch-size {odd} cannot be halved")),
                "{error:#}"
            );
        }
        let other = explain(failed("status 719").into(), 48, 1);
        assert_eq!(other.to_string(), "device cuda:1: status 719");
    }
}
