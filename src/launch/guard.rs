//! Kills the ranks if the launcher is killed.
//!
//! With `PR_SET_PDEATHSIG` the kernel kills a launcher's children, but not the processes that these have
//! started. A shell in its own process group therefore reads from a pipe that only the launcher holds. It is
//! told of every process group and kills them when the pipe closes.

use std::{
    io::Write,
    process::{Child, Command, Stdio},
};

/// Reads lines `add TARGET`, `remove TARGET` and `forget`; a target is an argument of kill(2), negative for a group.
const SCRIPT: &str = r#"trap "" INT TERM HUP
targets=
while read -r verb target; do
    case $verb in
    add) targets="$targets $target" ;;
    remove)
        rest=
        for other in $targets; do [ "$other" = "$target" ] || rest="$rest $other"; done
        targets=$rest
        ;;
    forget) targets= ;;
    esac
done
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
        self.tell(&format!("add {target}\n"));
    }

    /// Removes a target, whose number may be used again.
    pub fn remove(&mut self, target: i32) {
        self.tell(&format!("remove {target}\n"));
    }

    fn tell(&mut self, line: &str) {
        if let Some(stdin) = self.0.as_mut().and_then(|shell| shell.stdin.as_mut()) {
            // Fails only if the shell is gone; the kernel's mechanism is left.
            let _ = stdin.write_all(line.as_bytes());
        }
    }
}

impl Drop for Guard {
    /// Clears the list, because the ranks have ended.
    fn drop(&mut self) {
        self.tell("forget\n");
        if let Some(mut shell) = self.0.take() {
            drop(shell.stdin.take());
            let _ = shell.wait();
        }
    }
}
