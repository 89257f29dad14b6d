//! Starts one process per rank: this program again, with the environment that torchrun would give
//! it, and ends them together.

use crate::{
    console::last_words,
    exit::{LAUNCHED, OTHER_RANK_FAILED, asked_by},
    stop::ECHO,
};
use anyhow::{Context, Result};
use collective::{MASTER_FD, SECRET, Secret};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::{
    net::TcpListener,
    os::{
        fd::AsRawFd,
        unix::process::{CommandExt, ExitStatusExt},
    },
    process::{Child, Command, ExitCode, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Time the other ranks have to leave by themselves after one failed.
const GRACE: Duration = Duration::from_secs(5);
/// Time all ranks have to finish their step and keep a checkpoint after a signal.
const STOP_GRACE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);
/// Tells rank 0 why this launcher started what it started.
pub const WHY: &str = "BURN_DDP_WHY";

/// Starts `count` ranks of this program with this program's arguments and waits for them.
///
/// The exit code is 0, or the first failing rank's, or 128 + signal if this launcher was told to
/// stop.
///
/// # Errors
/// If a rank cannot be started.
pub fn ranks(count: usize, why: &str) -> Result<ExitCode> {
    let signal = catch_signals()?;
    let mut ranks = Ranks::start(count, why)?;
    let outcome = ranks.wait(&signal);
    ranks.stop();
    Ok(outcome.report(count))
}

/// Keeps the number of the first signal that asks us to stop.
fn catch_signals() -> Result<Arc<AtomicUsize>> {
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGINT, SIGTERM] {
        signal_hook::flag::register_usize(number, signal.clone(), number as usize)
            .context("cannot watch for signals")?;
    }
    Ok(signal)
}

/// How a job ended.
enum Outcome {
    Done,
    Failed { rank: usize, status: ExitStatus },
    Signalled(usize),
}

impl Outcome {
    /// Says what the failing rank could not say itself; its own error is already on the screen.
    fn report(self, count: usize) -> ExitCode {
        match self {
            Outcome::Done => ExitCode::SUCCESS,
            Outcome::Signalled(signal) => ExitCode::from(128 + signal as u8),
            Outcome::Failed { rank, status } => {
                let how = match (status.code(), status.signal()) {
                    (Some(code), _) => format!("exited with code {code}"),
                    (None, Some(signal)) => format!("was killed by signal {signal}"),
                    (None, None) => format!("ended: {status}"),
                };
                last_words(&format!("rank {rank} of {count} {how}; the job was stopped"));
                let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
                ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
            }
        }
    }
}

/// The running ranks. Dropping it kills them.
struct Ranks {
    running: Vec<(usize, Child)>,
}

impl Ranks {
    fn start(count: usize, why: &str) -> Result<Self> {
        // Bound here and handed to rank 0, so that no other program can take the port in between.
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot bind a port on 127.0.0.1")?;
        let port = listener.local_addr().context("cannot read the bound port")?.port();
        let secret = Secret::random();
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut ranks = Ranks { running: Vec::new() };
        for rank in 0..count {
            let mut command = Command::new(&program);
            command
                .args(std::env::args_os().skip(1))
                .env("RANK", rank.to_string())
                .env("LOCAL_RANK", rank.to_string())
                .env("WORLD_SIZE", count.to_string())
                .env("LOCAL_WORLD_SIZE", count.to_string())
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", port.to_string())
                .env(SECRET, secret.expose())
                .env(LAUNCHED, "1")
                .env(WHY, why);
            if rank == 0 {
                command.env(MASTER_FD, listener.as_raw_fd().to_string());
            } else {
                command.stdin(Stdio::null());
            }
            let inherited = (rank == 0).then(|| listener.as_raw_fd());
            // SAFETY: between fork and exec only these two async-signal-safe calls are made.
            unsafe { command.pre_exec(move || prepare_child(inherited)) };
            let child = command.spawn().with_context(|| format!("cannot start rank {rank}"))?;
            ranks.running.push((rank, child));
        }
        Ok(ranks)
    }

    /// Waits until all ranks are done, one fails, or a signal arrives.
    fn wait(&mut self, signal: &AtomicUsize) -> Outcome {
        let mut consequence: Option<(Outcome, Instant)> = None;
        // The signal after which all ranks finish their step, and when it was seen.
        let mut asked: Option<(usize, Instant)> = None;
        loop {
            for (rank, status) in self.reap() {
                if status.success() {
                    continue;
                }
                if let Some(signal) = status.code().and_then(asked_by) {
                    asked.get_or_insert((signal as usize, Instant::now()));
                    continue;
                }
                let failed = Outcome::Failed { rank, status };
                if status.code() != Some(i32::from(OTHER_RANK_FAILED)) {
                    return failed;
                }
                // The rank that failed first has the reason; wait a little for it to be found.
                consequence.get_or_insert((failed, Instant::now() + GRACE));
            }
            match (signal.swap(0, Ordering::Relaxed), asked) {
                (0, _) => {}
                (signal, None) => {
                    asked = Some((signal, Instant::now()));
                    self.pass_on(signal);
                }
                (signal, Some((_, first))) if first.elapsed() > ECHO => return Outcome::Signalled(signal),
                (_, Some(_)) => {}
            }
            if let Some((signal, first)) = asked
                && (self.running.is_empty() || first.elapsed() > STOP_GRACE)
            {
                return Outcome::Signalled(signal);
            }
            let waited = consequence.as_ref().is_some_and(|(_, until)| Instant::now() > *until);
            if self.running.is_empty() || waited {
                return consequence.map_or(Outcome::Done, |(failed, _)| failed);
            }
            thread::sleep(POLL);
        }
    }

    /// Removes the ranks that have ended.
    fn reap(&mut self) -> Vec<(usize, ExitStatus)> {
        let mut ended = Vec::new();
        self.running.retain_mut(|(rank, child)| match child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                ended.push((*rank, status));
                false
            }
            // Only possible if somebody else waited for our child.
            Err(_) => false,
        });
        ended
    }

    fn pass_on(&self, signal: usize) {
        for (_, child) in &self.running {
            // SAFETY: the child has not been waited for, so its pid is still its own.
            unsafe { libc::kill(child.id() as i32, signal as i32) };
        }
    }

    /// Asks the ranks that are left to end, and makes them after a grace.
    fn stop(&mut self) {
        self.pass_on(SIGTERM as usize);
        let until = Instant::now() + GRACE;
        while !self.running.is_empty() && Instant::now() < until {
            thread::sleep(POLL);
            self.reap();
        }
        self.kill();
    }

    fn kill(&mut self) {
        for (_, child) in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.running.clear();
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.kill();
    }
}

/// In the child: die with the launcher, even if it is killed with -9, and keep the listener open.
fn prepare_child(inherited: Option<i32>) -> std::io::Result<()> {
    // SAFETY: plain system calls on values of our own.
    unsafe {
        #[cfg(target_os = "linux")]
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        if let Some(fd) = inherited
            && libc::fcntl(fd, libc::F_SETFD, 0) != 0
        {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}
