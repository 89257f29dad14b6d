//! Notices that a peer's process has ended.

use crate::transport::local::{
    Liveness,
    region::{Memory, Region},
};
use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::atomic::Ordering::Acquire,
};

/// The processes of a group, by rank.
#[derive(Debug)]
pub struct Processes(Vec<Process>);

#[derive(Debug)]
enum Process {
    /// A pidfd, readable once the process has ended, even while it waits to be reaped. Its number
    /// cannot come to mean another process.
    Handle(OwnedFd),
    /// Had ended before we looked.
    Ended,
    /// The system has no pidfds (Linux before 5.3, some sandboxes): ask by number.
    Number(i32),
}

impl Processes {
    /// Of a group whose ranks have all joined.
    pub fn watch<M: Memory>(region: &Region<M>) -> Self {
        Processes(region.slots().map(|slot| Process::open(slot.pid.load(Acquire))).collect())
    }
}

impl Liveness for Processes {
    fn lost(&self, rank: usize) -> Option<String> {
        self.0[rank].has_ended().then(|| "its process ended".to_string())
    }
}

impl Process {
    fn open(pid: u32) -> Self {
        // A peer wrote it: 0 and negative numbers would mean whole groups of processes.
        let Ok(pid @ 1..) = i32::try_from(pid) else { return Process::Ended };
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        match i32::try_from(fd) {
            // SAFETY: just opened, nobody else's; the kernel sets close-on-exec.
            Ok(fd @ 0..) => Process::Handle(unsafe { OwnedFd::from_raw_fd(fd) }),
            _ if io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH) => Process::Ended,
            _ => Process::Number(pid),
        }
    }

    fn has_ended(&self) -> bool {
        match self {
            Process::Handle(fd) => {
                let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: one valid entry; does not wait.
                unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
            }
            Process::Ended => true,
            // SAFETY: signal 0 only asks.
            Process::Number(pid) => unsafe {
                libc::kill(*pid, 0) != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn an_unreaped_process_has_ended() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = Process::open(child.id());
        assert!(matches!(process, Process::Handle(_)));
        assert!(!process.has_ended());
        drop(child.stdin.take());
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !process.has_ended() {
            assert!(std::time::Instant::now() < deadline, "not noticed");
            std::thread::yield_now();
        }
        let number = Process::Number(i32::try_from(child.id()).unwrap());
        assert!(!number.has_ended(), "without a handle, a zombie still counts as running");
        child.wait().unwrap();
        assert!(number.has_ended());
        assert!(matches!(Process::open(child.id()), Process::Ended));
        assert!(matches!(Process::open(0), Process::Ended));
    }
}
