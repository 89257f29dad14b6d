//! This machine's ranks in one round.

use super::{
    child::{Guard, Process},
    environment::{Recover, Round},
    generation::{Generation, LineSocket},
    job::Job,
    outcome::{ExitReason, Failure, News, Outcome},
    output::Listener,
};
use crate::process::{console::eprint_line, stop};
use anyhow::{Context, Result};
use std::{
    cell::Cell,
    io::{IsTerminal, stdin},
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
    /// Its rank at the start of the round.
    rank: usize,
    process: Process,
    listener: Listener,
    /// Connection for messages about generations, with `--recover live`.
    socket: Option<LineSocket>,
    /// Whether its outcome was reported.
    reported: Cell<bool>,
}

/// The running ranks. Dropping it kills them and the processes that they have started.
#[derive(Debug)]
pub struct Ranks<'a> {
    // Dropped in this order: the guard must outlive the ranks.
    ranks: Vec<Rank>,
    guard: Guard,
    began: Instant,
    job: &'a Job,
    round: &'a mut Round,
    /// Whether a stop signal was reported.
    signalled: bool,
    /// A rank that is stopped, and for how long it was observed so.
    ///
    /// Observed time, and not elapsed time: a scheduler that suspends the job stops the launcher, too.
    halted: Option<(usize, Duration)>,
}

impl<'a> Ranks<'a> {
    /// Starts all ranks. Stops starting further ones after a stop signal.
    ///
    /// # Errors
    /// If the program cannot be started or an output file or folder cannot be created. The error names it.
    pub fn start(job: &'a Job, round: &'a mut Round) -> Result<Self> {
        job.output.begin(round)?;
        let local_ranks = round.ranks_on(round.node);
        let (guard, began) = (Guard::start(), Instant::now());
        let mut ranks = Ranks { ranks: Vec::new(), guard, began, job, round, signalled: false, halted: None };
        for rank in local_ranks.take_while(|_| stop::signal().is_none()) {
            let rank = ranks.start_rank(rank)?;
            ranks.ranks.push(rank);
        }
        Ok(ranks)
    }

    /// Starts the process of `rank`.
    fn start_rank(&mut self, rank: usize) -> Result<Rank> {
        let (job, round) = (self.job, &*self.round);
        let mut command = Command::new(&job.program);
        command.args(&job.args).envs(job.variables.iter().cloned());
        round.describe(&mut command, rank, &job.master_addr, &job.secret);
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
            Recover::Live => Some(LineSocket::pass_to(&mut command, round.place(rank))?),
        };
        let mut process = Process::start(command, foreground).with_context(|| format!("rank {rank}"))?;
        self.guard.add(process.target());
        let listener = Listener::start(&mut process.child, rank, &job.output, round)?;
        Ok(Rank {
            rank,
            process,
            listener,
            socket: passed.map(|(socket, _)| socket),
            reported: Cell::default(),
        })
    }

    /// Begins a generation: reports lost machines and the ranks that have failed, starts new processes in place of those
    /// on this machine, and tells all others.
    ///
    /// # Errors
    /// Those of [`Ranks::start`].
    pub fn replace(
        &mut self,
        generation: Generation,
        failures: Vec<Failure>,
        lost: &[Outcome],
    ) -> Result<()> {
        self.round.continue_in(generation, lost);
        let (restart, max_restarts) = (self.round.failures(), self.round.max_restarts);
        let restart = format!("restart {restart} of {max_restarts}");
        for machine in lost {
            let ranks = self.round.world_size();
            machine.report(&format!("continuing with the other {ranks} rank(s), {restart}"));
        }
        let consequence = format!("replacing it, {restart}");
        for failure in failures {
            let rank = failure.rank;
            Outcome::Failed(failure).report(&consequence);
            if let Some(at) = self.ranks.iter().position(|one| one.rank == rank) {
                let new = self.start_rank(rank)?;
                // Reaped at the end of this block, after the guard has forgotten its number.
                let _old = std::mem::replace(&mut self.ranks[at], new);
                self.guard.set(self.ranks.iter().map(|rank| rank.process.target()));
            }
        }
        for Rank { rank, socket, .. } in &mut self.ranks {
            if let Some(socket) = socket {
                socket.send(&self.round.place(*rank));
            }
        }
        Ok(())
    }

    /// Kills those of `ranks` that run on this machine, or that are stopped there.
    pub fn kill(&self, ranks: &[usize], only_stopped: bool) {
        for Rank { process, .. } in self.ranks.iter().filter(|one| ranks.contains(&one.rank)) {
            if !only_stopped || process.stopped().is_some() {
                process.signal(libc::SIGKILL);
            }
        }
    }

    /// News since the last call, a polling interval ago: messages of the ranks, then their outcomes.
    pub fn news(&mut self) -> Vec<News> {
        let mut news = Vec::new();
        for Rank { rank, socket, .. } in &mut self.ranks {
            let messages = socket.iter_mut().flat_map(|socket| std::iter::from_fn(|| socket.receive()));
            news.extend(messages.map(|message| News::Message(*rank, message)));
        }
        news.extend(self.outcomes().into_iter().map(News::Outcome));
        news
    }

    /// A stop signal, then the ranks that have ended or stay stopped.
    fn outcomes(&mut self) -> Vec<Outcome> {
        let signal = stop::signal().filter(|_| !self.signalled);
        self.signalled |= signal.is_some();
        let mut outcomes: Vec<_> = signal.map(|signal| Outcome::Stopped { signal }).into_iter().collect();
        for rank in self.ranks.iter().filter(|rank| !rank.reported.get()) {
            let Some(ended) = rank.process.poll() else { continue };
            rank.reported.set(true);
            outcomes.push(ended.map_or_else(|how| self.failure(rank, how), |()| Outcome::Done));
        }
        if outcomes.is_empty() {
            outcomes.extend(self.halted());
        }
        outcomes
    }

    /// The failure of a rank that has been stopped for too long.
    ///
    /// Ranks that wait for it in a collective time out by themselves, but ranks that have ended do not.
    fn halted(&mut self) -> Option<Outcome> {
        let before = self.halted.take();
        let (rank, signal) = self.ranks.iter().find_map(|rank| Some((rank, rank.process.stopped()?)))?;
        let seen = before.filter(|(before, _)| *before == rank.rank).map(|(_, seen)| seen + self.job.poll);
        // A single rank may be stopped for any time.
        let is_over = self.round.world_size() > 1 && seen.is_some_and(|seen| seen > STOPPED);
        let failure = is_over.then(|| self.failure(rank, ExitReason::Stopped(signal)));
        self.halted = Some((rank.rank, seen.unwrap_or_default()));
        failure
    }

    /// Whether all ranks of this machine have ended.
    fn all_ended(&self) -> bool {
        self.ranks.iter().all(|rank| rank.process.poll().is_some())
    }

    /// Describes the failure of a rank.
    fn failure(&self, Rank { rank, listener, .. }: &Rank, how: ExitReason) -> Outcome {
        let seconds = self.began.elapsed().as_secs_f64();
        listener.finish(Instant::now() + OUTPUT_GRACE);
        Outcome::Failed(Failure {
            rank: *rank,
            world_size: self.round.world_size(),
            place: match self.round.sizes.len() {
                1 => String::new(),
                _ => format!(" on node {} ({})", self.round.node, collective::host()),
            },
            how,
            seconds,
            last_lines: listener.last_lines(),
            log: listener.log.clone(),
        })
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

    /// The outcome after several checks of ranks, the first of which is stopped before the third check.
    fn watched(count: usize) -> Result<Option<Outcome>> {
        let mut job = Job { poll: Duration::from_secs(30), ..Job::new("sleep", vec!["60".into()], count) };
        job.output.prefixed = true;
        let mut round = job.round.clone();
        let mut ranks = Ranks::start(&job, &mut round)?;
        let look = |ranks: &mut Ranks<'_>| ranks.outcomes().pop();
        assert_eq!((look(&mut ranks), look(&mut ranks)), (None, None));
        ranks.ranks[0].process.signal(libc::SIGSTOP);
        while ranks.ranks[0].process.stopped().is_none() {
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
