//! This machine's ranks in one round.

use super::{
    child::{Guard, Process},
    environment::{Recover, Round},
    generation::LineSocket,
    job::Job,
    outcome::{ExitReason, Failure, News, Outcome},
    output::Listener,
};
use crate::process::{console::eprint_line, stop};
use anyhow::{Context, Result};
use std::{
    io::{IsTerminal, stdin},
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long a rank may stay stopped (SIGSTOP) while others need it.
const STOPPED: Duration = Duration::from_secs(75);
/// Time limit for the last output of a rank to arrive.
const OUTPUT_GRACE: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug)]
struct Rank {
    rank: usize,
    process: Process,
    listener: Listener,
    /// Connection for messages about generations, with `--recover live`.
    socket: Option<LineSocket>,
    reported: bool,
}

/// The running ranks. Dropping it kills them and the processes that they have started.
#[derive(Debug)]
pub struct Ranks {
    // Dropped in this order: the guard must outlive the ranks.
    ranks: Vec<Rank>,
    guard: Guard,
    began: Instant,
    world_size: usize,
    place: String,
    /// Folder of the output files.
    folder: Option<PathBuf>,
    /// Whether a stop signal was reported.
    signalled: bool,
    /// A rank that is stopped, by which signal, and for how long it was observed so.
    ///
    /// Observed time, and not elapsed time: a scheduler that suspends the job stops the launcher, too.
    halted: Option<(usize, i32, Duration)>,
}

impl Ranks {
    /// Starts all ranks. Stops starting further ones after a stop signal.
    ///
    /// # Errors
    /// If the program cannot be started or an output file or folder cannot be created. The error names it.
    pub fn start(job: &Job, round: &Round) -> Result<Self> {
        let folder = job.output.folder(round)?;
        if let Some(folder) = &folder {
            eprint_line(&format!("log files of this job: {}", folder.display()));
        }
        let place = match round.sizes.len() {
            1 => String::new(),
            _ => format!(" on node {} ({})", round.node, collective::host()),
        };
        let mut ranks = Ranks {
            ranks: Vec::new(),
            guard: Guard::start(),
            began: Instant::now(),
            world_size: round.world_size(),
            place,
            folder,
            signalled: false,
            halted: None,
        };
        for local_rank in 0..round.local_world_size() {
            if stop::signal().is_some() {
                break;
            }
            let rank = ranks.start_rank(job, round, round.first_rank() + local_rank)?;
            ranks.ranks.push(rank);
        }
        Ok(ranks)
    }

    /// Starts the process of `rank`.
    fn start_rank(&mut self, job: &Job, round: &Round, rank: usize) -> Result<Rank> {
        let replaces = round.generation.number > 0;
        let mut command = Command::new(&job.program);
        command.args(&job.args).envs(job.variables.iter().cloned());
        round.describe(&mut command, rank - round.first_rank(), &job.master_addr, &job.secret);
        command.stdout(job.output.stdio()).stderr(job.output.stdio());
        // With inherited output, rank 0 may read keys and draw, which only the foreground process group may. All others
        // get their own group and no terminal input.
        let terminal = stdin().is_terminal();
        let foreground = terminal && rank == 0 && job.output.is_inherited();
        if rank != 0 || (terminal && !foreground) {
            command.stdin(Stdio::null());
        }
        let passed = match round.recover {
            Recover::Restart => None,
            Recover::Live => Some(LineSocket::pass_to(&mut command, round.generation)?),
        };
        let mut process = Process::start(command, foreground).with_context(|| format!("rank {rank}"))?;
        self.guard.add(process.target());
        let folder = self.folder.as_deref();
        let listener = Listener::start(process.child(), rank, &job.output, folder, replaces)?;
        Ok(Rank { rank, process, listener, socket: passed.map(|(socket, _)| socket), reported: false })
    }

    /// Begins the generation of `round`: reports the ranks that have failed, starts new processes in place of those on this
    /// machine, and tells all others.
    ///
    /// # Errors
    /// Those of [`Ranks::start`].
    pub fn replace(&mut self, job: &Job, round: &Round, failures: Vec<Failure>) -> Result<()> {
        let consequence = format!("replacing it, restart {} of {}", round.failures(), round.max_restarts);
        for failure in failures {
            let rank = failure.rank;
            Outcome::Failed(failure).report(&consequence);
            if let Some(at) = self.ranks.iter().position(|one| one.rank == rank) {
                let new = self.start_rank(job, round, rank)?;
                // Reaped at the end of this block, after the guard has forgotten its number.
                let _old = std::mem::replace(&mut self.ranks[at], new);
                self.guard.set(self.ranks.iter().map(|rank| rank.process.target()));
            }
        }
        for socket in self.ranks.iter_mut().filter_map(|rank| rank.socket.as_mut()) {
            socket.send(&round.generation);
        }
        Ok(())
    }

    /// Kills those of `ranks` that run on this machine, or that are stopped there.
    pub fn kill(&self, ranks: &[usize], only_stopped: bool) {
        let stopped: Vec<usize> = self.stopped().map(|(rank, _)| rank).collect();
        let chosen =
            |one: &&Rank| ranks.contains(&one.rank) && (!only_stopped || stopped.contains(&one.rank));
        self.ranks.iter().filter(chosen).for_each(|one| one.process.signal(libc::SIGKILL));
    }

    /// News since the last call, `poll` ago: messages of the ranks, then their outcomes.
    pub fn news(&mut self, poll: Duration) -> Vec<News> {
        let mut news = Vec::new();
        for Rank { rank, socket, .. } in &mut self.ranks {
            let messages = socket.iter_mut().flat_map(|socket| std::iter::from_fn(|| socket.receive()));
            news.extend(messages.map(|message| News::Message(*rank, message)));
        }
        news.extend(self.outcomes(poll).into_iter().map(News::Outcome));
        news
    }

    /// A stop signal, then the ranks that have ended or stay stopped.
    fn outcomes(&mut self, poll: Duration) -> Vec<Outcome> {
        let signal = stop::signal().filter(|_| !self.signalled);
        self.signalled |= signal.is_some();
        let mut outcomes: Vec<_> = signal.map(|signal| Outcome::Stopped { signal }).into_iter().collect();
        let mut ended = Vec::new();
        for rank in self.ranks.iter_mut().filter(|rank| !rank.reported) {
            if let Some(how) = rank.process.poll() {
                rank.reported = true;
                ended.push((rank.rank, how));
            }
        }
        outcomes.extend(ended.into_iter().map(|(rank, how)| match how {
            Ok(()) => Outcome::Done,
            Err(how) => self.failure(rank, how),
        }));
        if outcomes.is_empty() {
            outcomes.extend(self.halted(poll));
        }
        outcomes
    }

    /// The failure of a rank that has been stopped for too long.
    ///
    /// Ranks that wait for it in a collective time out by themselves, but ranks that have ended do not.
    fn halted(&mut self, poll: Duration) -> Option<Outcome> {
        // A single rank may be stopped for any time.
        let stopped = self.stopped().next().filter(|_| self.world_size > 1);
        self.halted = stopped.map(|(rank, signal)| match self.halted {
            Some((before, _, seen)) if before == rank => (rank, signal, seen + poll),
            Some(_) | None => (rank, signal, Duration::ZERO),
        });
        let (rank, signal, _) = self.halted.filter(|(_, _, seen)| *seen > STOPPED)?;
        Some(self.failure(rank, ExitReason::Stopped(signal)))
    }

    /// The ranks that are stopped, with the signal.
    fn stopped(&self) -> impl Iterator<Item = (usize, i32)> {
        self.ranks.iter().filter_map(|rank| Some((rank.rank, rank.process.stopped()?)))
    }

    /// Whether all ranks of this machine have ended.
    fn all_ended(&self) -> bool {
        self.ranks.iter().all(|rank| rank.process.poll().is_some())
    }

    /// Describes the failure of a rank.
    fn failure(&self, rank: usize, how: ExitReason) -> Outcome {
        let seconds = self.began.elapsed().as_secs_f64();
        let listener = self.ranks.iter().find(|one| one.rank == rank).map(|one| &one.listener);
        let (last_lines, log) = listener.map_or((Vec::new(), None), |listener| {
            listener.finish(Instant::now() + OUTPUT_GRACE);
            (listener.last_lines(), listener.log.clone())
        });
        let (world_size, place) = (self.world_size, self.place.clone());
        Outcome::Failed(Failure { rank, world_size, place, how, seconds, last_lines, log })
    }

    /// Waits at most this time, or until a second stop signal, for all ranks to end.
    pub fn wait(&self, limit: Duration) {
        let until = Instant::now() + limit;
        while !self.all_ended() && Instant::now() < until && !stop::insisted() {
            thread::sleep(PAUSE);
        }
    }

    /// Sends `signal` to the remaining ranks and kills them after `grace`, or at a second stop signal.
    pub fn stop(self, signal: i32, grace: Duration) {
        let running = || self.ranks.iter().filter(|rank| rank.process.poll().is_none());
        running().for_each(|rank| rank.process.signal(signal));
        self.wait(grace);
        let late: Vec<String> = running().map(|rank| rank.rank.to_string()).collect();
        if !late.is_empty() {
            let late = late.join(", ");
            eprint_line(&format!("rank(s) {late} did not exit after the stop signal and were killed"));
        }
        self.finish();
    }

    /// Kills the processes that the ranks have left behind, and forwards the remaining output.
    pub fn finish(self) {
        for rank in &self.ranks {
            rank.process.signal(libc::SIGKILL);
        }
        let until = Instant::now() + OUTPUT_GRACE;
        for rank in &self.ranks {
            rank.listener.finish(until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleepers(count: usize) -> Result<Ranks> {
        let mut job = Job::new("sleep", vec!["60".into()], count);
        job.output.prefixed = true;
        Ranks::start(&job, &job.round)
    }

    /// The outcome after several checks of ranks, the first of which is stopped before the third check.
    fn watched(count: usize) -> Result<Option<Outcome>> {
        let mut ranks = sleepers(count)?;
        let look = |ranks: &mut Ranks| ranks.outcomes(Duration::from_secs(30)).pop();
        assert_eq!((look(&mut ranks), look(&mut ranks)), (None, None));
        ranks.ranks[0].process.signal(libc::SIGSTOP);
        while ranks.stopped().next().is_none() {
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!((look(&mut ranks), look(&mut ranks), look(&mut ranks)), (None, None, None));
        Ok(look(&mut ranks))
    }

    #[test]
    fn a_stopped_rank_that_others_need_ends_the_job_by_name() -> Result<()> {
        let ending = watched(2)?.expect("an ending");
        assert_eq!(ending.code(), 128 + libc::SIGSTOP as u8);
        let Outcome::Failed(failure) = ending else { panic!("{ending:?}") };
        assert_eq!((failure.rank, failure.how), (0, ExitReason::Stopped(libc::SIGSTOP)));
        Ok(())
    }

    #[test]
    fn alone_it_may_rest() -> Result<()> {
        assert_eq!(watched(1)?, None);
        Ok(())
    }
}
