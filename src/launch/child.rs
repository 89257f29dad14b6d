//! One rank's process, which leads its own process group, and the guard that ends it with the launcher.

use super::outcome::ExitReason;
use anyhow::{Context, Result};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process, kill_process_group, waitid,
};
use std::{
    ffi::OsStr,
    io::Write,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
};

/// A rank's process.
///
/// It is reaped at the end of the round only. Until then the kernel does not reuse its process id, so that
/// signals to its group cannot reach other processes.
#[derive(Debug)]
pub struct Process {
    /// The child process, for its pipes.
    pub child: Child,
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

/// Reads a target from each line, an argument of kill(2), negative for a group. An empty line clears the list.
const SCRIPT: &str = r#"trap "" INT TERM HUP
targets=
while read -r target; do targets=${target:+$targets $target}; done
[ -z "$targets" ] || kill -s KILL -- $targets 2>/dev/null"#;

/// Kills the ranks if the launcher is killed.
///
/// With `PR_SET_PDEATHSIG` the kernel kills a launcher's children, but not the processes that these have
/// started. A shell in its own process group therefore reads from a pipe that only the launcher holds. It is
/// told of all process groups and kills them when the pipe closes. Without `/bin/sh`, only the kernel's mechanism
/// is left.
#[derive(Debug)]
pub struct Guard(Option<Child>);

impl Guard {
    /// Starts the shell, without inherited files, environment or terminal.
    pub fn start() -> Self {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", SCRIPT, "burn-ddp-guard"]).env_clear().current_dir("/").process_group(0);
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Guard(shell.spawn().ok())
    }

    /// Adds a process, or a group as a negative number.
    pub fn add(&mut self, target: i32) {
        self.tell(&format!("{target}\n"));
    }

    /// Replaces the list: the numbers of other targets may be used again.
    pub fn set(&mut self, targets: impl Iterator<Item = i32>) {
        self.tell(&targets.fold("\n".into(), |lines, target| format!("{lines}{target}\n")));
    }

    fn tell(&mut self, lines: &str) {
        if let Some(stdin) = self.0.as_mut().and_then(|shell| shell.stdin.as_mut()) {
            // Fails only if the shell is gone; the kernel's mechanism is left.
            let _ = stdin.write_all(lines.as_bytes());
        }
    }
}

impl Drop for Guard {
    /// Clears the list, because the ranks have ended.
    fn drop(&mut self) {
        self.set(std::iter::empty());
        if let Some(mut shell) = self.0.take() {
            drop(shell.stdin.take());
            let _ = shell.wait();
        }
    }
}
