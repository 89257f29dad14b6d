//! Kills the ranks if the launcher is killed.
//!
//! The kernel ends a launcher's children with it (`PR_SET_PDEATHSIG`), but not what those have
//! started in turn. So a shell of its own session waits on a pipe that only the launcher holds: it
//! is told of every process group, and kills those it knows when the pipe closes.

use std::{
    io::Write,
    process::{Child, Command, Stdio},
};

/// `add TARGET` and `forget`, a line each; a target is what kill(2) takes, negative for a group.
const SCRIPT: &str = r#"trap "" INT TERM HUP
targets=
while read -r verb target; do
    case $verb in
    add) targets="$targets $target" ;;
    forget) targets= ;;
    esac
done
[ -z "$targets" ] || kill -s KILL -- $targets 2>/dev/null"#;

/// The waiting shell. Without one (no `/bin/sh`), the kernel's part is what is left.
#[derive(Debug)]
pub struct Guard(Option<Child>);

impl Guard {
    /// Starts it. It inherits no open file, no environment and no terminal.
    pub fn start() -> Self {
        use std::os::unix::process::CommandExt;
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", SCRIPT, "burn-ddp-guard"]).env_clear().current_dir("/").process_group(0);
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Guard(shell.spawn().ok())
    }

    /// Tells it of a process, or of a group as a negative number.
    pub fn add(&mut self, target: i32) {
        self.tell(&format!("add {target}\n"));
    }

    fn tell(&mut self, line: &str) {
        if let Some(stdin) = self.0.as_mut().and_then(|shell| shell.stdin.as_mut()) {
            // It can only be gone, and then the kernel's part is left.
            let _ = stdin.write_all(line.as_bytes());
        }
    }
}

impl Drop for Guard {
    /// The ranks have ended: nothing is left to kill.
    fn drop(&mut self) {
        self.tell("forget\n");
        if let Some(mut shell) = self.0.take() {
            drop(shell.stdin.take());
            let _ = shell.wait();
        }
    }
}
