//! `--auto-batch`: a run whose batch does not fit into device memory starts again with half the batch.
//!
//! A device that ran out of memory has dropped work, and only the end of its process returns all of the memory. The
//! launcher therefore starts all ranks again; a program that is the only rank starts itself again. A variable of the
//! environment divides `--batch-size` and multiplies `--grad-accum-steps`, so that the global batch stays the same.

/// Environment variable with the divisor of `--batch-size`, which is the factor of `--grad-accum-steps`.
pub const DIVISOR: &str = "BURN_DDP_BATCH_DIVISOR";
