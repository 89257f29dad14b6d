//! The transport `nccl` with a stand-in for the library, for worlds of threads and of processes.
//!
//! Initialisation, order of calls, results, errors, time-outs and aborts. Destroying a group waits for its threads, so
//! that a test can read the log.

mod failures;
pub mod killed;
mod results;
mod site;
mod start;

use crate::common;
