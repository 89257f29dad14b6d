//! The transport `nccl` against a stand-in for the library: init, order of calls, results, errors,
//! time-outs and aborts, for worlds of threads and of processes.

#![cfg(target_os = "linux")]

#[path = "../common/mod.rs"]
mod common;
mod failures;
mod killed;
mod results;
mod site;
mod start;

use collective::ProcessGroup;

/// What a rank's threads need to come to their end before the log is looked at.
fn leave(group: ProcessGroup) {
    group.destroy();
}
