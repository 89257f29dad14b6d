//! One rank's process, the leader of a process group of its own.

use anyhow::{Context, Result, bail};
use std::{
    ffi::OsString,
    io,
    os::{
        fd::RawFd,
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::Path,
    process::{Child, Command, ExitStatus},
};

/// A rank's process. It is waited for only at the end of the round, so that until then its number
/// cannot become another process's, and its group can be signalled without harm.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Shares the launcher's group, because it reads the terminal, which only the foreground
    /// group may.
    foreground: bool,
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts `command`. With `inherited`, that descriptor stays open in it.
    ///
    /// # Errors
    /// Naming the program that cannot be started, and why.
    pub fn start(mut command: Command, inherited: Option<RawFd>, foreground: bool) -> Result<Self> {
        if !foreground {
            command.process_group(0);
        }
        let launcher = std::process::id();
        // SAFETY: between fork and exec only async-signal-safe calls are made.
        unsafe { command.pre_exec(move || prepare(inherited, launcher)) };
        match command.spawn() {
            Ok(child) => Ok(Process { child, foreground, status: None }),
            Err(error) => {
                let program = command.get_program().to_owned();
                Err(error).with_context(|| why(&program))
            }
        }
    }

    /// The child itself, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// What kill(2) takes to reach the whole of it.
    pub fn target(&self) -> i32 {
        let pid = self.child.id() as i32;
        if self.foreground { pid } else { -pid }
    }

    /// How it ended, if it has. Does not wait, and leaves the process number taken.
    pub fn poll(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = ended(self.child.id());
        }
        self.status
    }

    /// The signal that it stands stopped by, if it does and has not ended.
    pub fn stopped(&self) -> Option<i32> {
        let (status, code) = look(self.child.id(), libc::WSTOPPED)?;
        (code == libc::CLD_STOPPED).then_some(status)
    }

    /// Sends a signal to it and to all of its group.
    pub fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so the number is still its own.
        unsafe { libc::kill(self.target(), signal) };
    }
}

impl Drop for Process {
    /// Kills what is left of the group, and gives the number back.
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        let _ = self.child.wait();
    }
}

/// Looks whether a child has ended.
fn ended(pid: u32) -> Option<ExitStatus> {
    match look(pid, libc::WEXITED)? {
        (status, libc::CLD_EXITED) => Some(ExitStatus::from_raw((status & 0xff) << 8)),
        (status, libc::CLD_DUMPED) => Some(ExitStatus::from_raw(status | 0x80)),
        (status, _killed) => Some(ExitStatus::from_raw(status)),
    }
}

/// What waitid(2) says of a child, its status and its code, without taking it away.
fn look(pid: u32, what: i32) -> Option<(i32, i32)> {
    // SAFETY: waitid writes into memory of our own.
    let info = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        if libc::waitid(libc::P_PID, pid, &mut info, what | libc::WNOHANG | libc::WNOWAIT) != 0 {
            // Only possible if somebody else waited for our child; then how it ended is not known.
            return (what == libc::WEXITED).then_some((1, libc::CLD_EXITED));
        }
        info
    };
    // SAFETY: waitid fills in these fields; a process number of 0 means that nothing has happened.
    let (process, status) = unsafe { (info.si_pid(), info.si_status()) };
    (process != 0).then_some((status, info.si_code))
}

/// In the child: end with the launcher, even if it is killed with -9, and keep the socket open.
fn prepare(inherited: Option<RawFd>, launcher: u32) -> io::Result<()> {
    // SAFETY: plain system calls on values of our own.
    unsafe {
        #[cfg(target_os = "linux")]
        {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // It may have been killed before the call above.
            if libc::getppid() as u32 != launcher {
                libc::_exit(1);
            }
        }
        if let Some(fd) = inherited
            && libc::fcntl(fd, libc::F_SETFD, 0) != 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// What to say about a program that does not start.
fn why(program: &OsString) -> String {
    let path = Path::new(program);
    let shown = path.display();
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("py") => format!("cannot start {shown}: it is a Python file; write `-- python {shown}`"),
        Some(_) | None => format!("cannot start {shown}"),
    }
}

/// Refuses a program that is not there before any rank is started.
///
/// # Errors
/// Naming the program.
pub fn check(program: &OsString) -> Result<()> {
    let path = Path::new(program);
    if path.components().count() > 1 && !path.exists() {
        bail!("cannot start {}: there is no such file", path.display());
    }
    Ok(())
}
