//! Detection of peers whose process has ended.

use crate::transport::local::{
    Liveness,
    region::{Memory, Region},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open, test_kill_process},
};
use std::{os::fd::OwnedFd, sync::atomic::Ordering::Acquire};

/// The processes of a group, by rank.
#[derive(Debug)]
pub struct Processes(Vec<Process>);

#[derive(Debug)]
enum Process {
    /// A pidfd, readable once the process has ended, even before it is reaped. It never refers to another
    /// process.
    Handle(OwnedFd),
    /// Had ended before it was opened.
    Ended,
    /// The process id, where the system has no pidfds (Linux before 5.3, some sandboxes).
    Number(Pid),
}

impl Processes {
    /// The processes of a group whose ranks have all joined.
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
        // Written by a peer: 0 and negative numbers would stand for process groups.
        let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0).and_then(Pid::from_raw);
        let Some(pid) = pid else { return Process::Ended };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => Process::Handle(fd),
            Err(Errno::SRCH) => Process::Ended,
            Err(_) => Process::Number(pid),
        }
    }

    fn has_ended(&self) -> bool {
        match self {
            Process::Handle(fd) => {
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now)) == Ok(1)
            }
            Process::Ended => true,
            Process::Number(pid) => test_kill_process(*pid) == Err(Errno::SRCH),
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
        let number = Process::Number(Pid::from_child(&child));
        assert!(!number.has_ended(), "without a handle, a zombie still counts as running");
        child.wait().unwrap();
        assert!(number.has_ended());
        assert!(matches!(Process::open(child.id()), Process::Ended));
        assert!(matches!(Process::open(0), Process::Ended));
    }
}
