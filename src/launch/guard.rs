//! Kills the ranks if the launcher is killed.
//!
//! With `PR_SET_PDEATHSIG` the kernel kills a launcher's children, but not the processes that these have
//! started. A shell in its own process group therefore reads from a pipe that only the launcher holds. It is
//! told of all process groups and kills them when the pipe closes.

use std::{
    io::Write,
    process::{Child, Command, Stdio},
};

/// Reads a target from each line, an argument of kill(2), negative for a group. An empty line clears the list.
const SCRIPT: &str = r#"trap "" INT TERM HUP
targets=
while read -r target; do targets=${target:+$targets $target}; done
[ -z "$targets" ] || kill -s KILL -- $targets 2>/dev/null"#;

/// The shell. Without `/bin/sh`, only the kernel's mechanism is left.
#[derive(Debug)]
pub struct Guard(Option<Child>);

impl Guard {
    /// Starts the shell, without inherited files, environment or terminal.
    pub fn start() -> Self {
        use std::os::unix::process::CommandExt;
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
