//! One rank's process, which leads its own process group.

use super::outcome::ExitReason;
use anyhow::{Context, Result, bail};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process, kill_process_group, waitid,
};
use std::{
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command},
};

/// A rank's process.
///
/// It is reaped at the end of the round only. Until then the kernel does not reuse its process id, so that
/// signals to its group cannot reach other processes.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Whether it is in the launcher's process group: only the foreground group may read the terminal.
    foreground: bool,
}

impl Process {
    /// Starts `command`.
    ///
    /// # Errors
    /// If the program cannot be started. The error names it and the reason.
    pub fn start(mut command: Command, foreground: bool) -> Result<Self> {
        if !foreground {
            command.process_group(0);
        }
        #[cfg(target_os = "linux")]
        end_with_launcher(&mut command);
        let child = command.spawn().with_context(|| why(command.get_program()))?;
        Ok(Process { child, foreground })
    }

    /// The child process, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The argument of kill(2) that addresses the process and its group.
    pub fn target(&self) -> i32 {
        let pid = self.child.id() as i32;
        if self.foreground { pid } else { -pid }
    }

    /// How the process ended, if it has. Does not wait, and does not reap the process.
    pub fn poll(&self) -> Option<Result<(), ExitReason>> {
        match peek(&self.child, WaitIdOptions::EXITED) {
            Ok(status) => status.map(|status| match status.exit_status().map(|code| code & 0xff) {
                Some(0) => Ok(()),
                Some(code) => Err(ExitReason::Exited(code)),
                None => Err(ExitReason::Killed(status.terminating_signal().unwrap_or(libc::SIGKILL))),
            }),
            // Only possible if other code has reaped the child; its status is then unknown.
            Err(_) => Some(Err(ExitReason::Exited(1))),
        }
    }

    /// The signal by which the process is stopped, if it is.
    pub fn stopped(&self) -> Option<i32> {
        peek(&self.child, WaitIdOptions::STOPPED).ok()??.stopping_signal()
    }

    /// Sends a signal to the process and its group.
    pub fn signal(&self, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        let pid = Pid::from_child(&self.child);
        // Fails only if nothing is left to signal. The child is not reaped, so that the number is its own.
        let _ = if self.foreground { kill_process(pid, signal) } else { kill_process_group(pid, signal) };
    }
}

impl Drop for Process {
    /// Kills the rest of the group and reaps the process.
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        let _ = self.child.wait();
    }
}

/// Status of a child that has ended or stopped, without waiting and without reaping it.
fn peek(child: &Child, events: WaitIdOptions) -> rustix::io::Result<Option<WaitIdStatus>> {
    waitid(WaitId::Pid(Pid::from_child(child)), events | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT)
}

/// Makes the child end with the launcher, even after SIGKILL.
#[cfg(target_os = "linux")]
fn end_with_launcher(command: &mut Command) {
    use rustix::process::{getppid, set_parent_process_death_signal};
    let launcher = std::process::id();
    let prepare = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The launcher may have been killed before the call above.
        if getppid().is_none_or(|parent| parent.as_raw_pid() as u32 != launcher) {
            // SAFETY: ends the process without running anything of the parent's.
            unsafe { libc::_exit(1) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe calls are made.
    unsafe { command.pre_exec(prepare) };
}

/// The message for a program that cannot be started.
fn why(program: &OsStr) -> String {
    let shown = program.display();
    match Path::new(program).extension() {
        Some(python) if python == "py" => {
            format!("cannot start {shown}: it is a Python file; write `-- python {shown}`")
        }
        Some(_) | None => format!("cannot start {shown}"),
    }
}

/// Checks that the program exists before any rank is started.
///
/// # Errors
/// If it does not exist. The error names it.
pub fn check(program: &OsString) -> Result<()> {
    let path = Path::new(program);
    if path.components().count() > 1 && !path.exists() {
        bail!("cannot start {}: there is no such file", path.display());
    }
    Ok(())
}
