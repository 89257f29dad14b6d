//! Ways of moving bytes between ranks.

mod local;
#[cfg(target_os = "linux")]
pub mod shm;
pub mod thread;
