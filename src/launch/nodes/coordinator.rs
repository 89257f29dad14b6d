//! Coordinator in node 0's launcher: listens for the launchers of all machines and decides how rounds begin
//! and end.

use super::{
    super::{environment::Round, generation::Generation, job::Job, outcome::Decision, port::ReservedPort},
    FromCoordinator, ToCoordinator,
    table::{Id, Table},
};
use crate::process::lock;
use anyhow::{Context, Result, bail};
use collective::{
    Secret,
    channel::{Channel, Received, Sender},
    listener::{Unproven, listen},
};
use std::{
    collections::BTreeMap,
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const TICK: Duration = Duration::from_millis(20);
/// Time that the coordinator stays for launchers that have not received the last outcome.
const GOODBYE: Duration = Duration::from_secs(3);

/// The coordinator's thread. Dropping it stops the thread, once the agents have disconnected.
#[derive(Debug)]
pub struct CoordinatorServer {
    closing: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl CoordinatorServer {
    /// Starts to serve at `listener`. The settings of `job`, which is node 0's, hold for all machines.
    ///
    /// # Errors
    /// If the listener cannot be used or a thread cannot be started.
    pub fn start(listener: TcpListener, job: &Job) -> Result<Self> {
        let secret = job.secret.clone();
        let failed = "cannot listen for other nodes";
        let closing = Arc::new(AtomicBool::new(false));
        let coordinator = Arc::new(Mutex::new(Coordinator {
            table: Table::new(job.rules, Instant::now()),
            senders: BTreeMap::new(),
            round: job.round.clone(),
            port: None,
        }));
        let (open, ids, shared) = (closing.clone(), Arc::<AtomicU64>::default(), coordinator.clone());
        let serve = move |stream, unproven| {
            serve(stream, unproven, &secret, ids.fetch_add(1, Ordering::Relaxed), &shared);
        };
        listen(listener, "ddp-nodes", move || !open.load(Ordering::SeqCst), serve).context(failed)?;
        let stop = closing.clone();
        let decide = move || {
            let mut until = None;
            loop {
                lock(&coordinator).decide();
                if stop.load(Ordering::SeqCst) {
                    let until = *until.get_or_insert_with(|| Instant::now() + GOODBYE);
                    if lock(&coordinator).table.is_empty() || Instant::now() > until {
                        return;
                    }
                }
                thread::sleep(TICK);
            }
        };
        let thread = thread::Builder::new().name("ddp-nodes".into()).spawn(decide).context(failed)?;
        Ok(CoordinatorServer { closing, thread: Some(thread) })
    }
}

impl Drop for CoordinatorServer {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Authenticates a new connection and receives its messages.
fn serve(stream: TcpStream, unproven: Unproven, secret: &Secret, id: Id, coordinator: &Mutex<Coordinator>) {
    // Unauthenticated peers are dropped silently.
    let Ok(mut channel) = Channel::answer(stream, secret) else { return };
    drop(unproven);
    lock(coordinator).senders.insert(id, channel.sender());
    loop {
        match channel.receive(Duration::from_secs(1)) {
            Ok(Received::Message(message)) => lock(coordinator).hear(id, message),
            Ok(Received::Nothing) => {}
            Ok(Received::Closed) | Err(_) => break,
        }
    }
    let mut coordinator = lock(coordinator);
    coordinator.senders.remove(&id);
    coordinator.table.gone(id, Instant::now());
}

/// The state of the coordinator: the machines and their connections.
struct Coordinator {
    table: Table,
    senders: BTreeMap<Id, Sender>,
    /// The current round or the next one, from node 0's view.
    round: Round,
    /// Master port of the current generation.
    port: Option<ReservedPort>,
}

impl Coordinator {
    fn hear(&mut self, id: Id, message: ToCoordinator) {
        match message {
            ToCoordinator::Join(join) => {
                if let Err(why) = self.table.join(id, join) {
                    self.tell(id, &FromCoordinator::Refused(why));
                }
            }
            ToCoordinator::News(news) => self.table.observe(id, news, Instant::now()),
        }
    }

    /// Advances the round, or refuses all machines if that is not possible.
    fn decide(&mut self) {
        if let Err(why) = self.advance(Instant::now()) {
            let refused = FromCoordinator::Refused(format!("{why:#}"));
            self.senders.keys().for_each(|id| self.tell(*id, &refused));
        }
    }

    /// Ends or repairs the round if that is decided, or begins one if enough machines have joined.
    ///
    /// # Errors
    /// If the time-out has expired, or there is no free port.
    fn advance(&mut self, now: Instant) -> Result<()> {
        if let Some((members, mut decision)) = self.table.decide(now) {
            decision.reserve_port(&mut self.port)?;
            match &decision {
                Decision::End(ending) => self.round.restart(ending),
                Decision::Replace { generation, .. } => self.round.generation = *generation,
                Decision::Kill { .. } => {}
            }
            let decided = FromCoordinator::Decided(decision);
            members.into_iter().for_each(|id| self.tell(id, &decided));
        }
        if let Some(members) = self.table.begin(now, &mut self.round) {
            let master_port = self.port.insert(ReservedPort::new()?).number;
            self.round.generation = Generation { number: 0, master_port };
            for (node, id) in members.into_iter().enumerate() {
                self.tell(id, &FromCoordinator::Begin(Round { node, ..self.round.clone() }));
            }
        } else if let Some(why) = self.table.too_late(now) {
            bail!("{why}");
        }
        Ok(())
    }

    fn tell(&self, id: Id, message: &FromCoordinator) {
        if let Some(sender) = self.senders.get(&id) {
            sender.send(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Join, Rules},
        *,
    };
    use collective::listener::MAX_UNPROVEN;

    fn threads() -> usize {
        std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
    }

    #[test]
    fn idle_connections_are_limited_and_do_not_keep_a_node_out() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let (wait, secret) = (Duration::from_secs(30), Secret::random());
        let rules = Rules { min: 1, max: 1, join_timeout: wait, last_call: wait };
        let job = Job { rules, secret: secret.clone(), ..Job::new("true", Vec::new(), 1) };
        let before = threads();
        let server = CoordinatorServer::start(listener, &job).expect("it starts");
        let mut most = 0;
        let idle: Vec<_> = (0..1500)
            .map(|_| {
                most = most.max(threads());
                TcpStream::connect(address).expect("a place in the backlog")
            })
            .collect();
        thread::sleep(Duration::from_millis(200));
        most = most.max(threads()) - before;
        // Other tests run at the same time.
        assert!(most < MAX_UNPROVEN + 100, "{most} threads for {} connections", idle.len());
        let deadline = Instant::now() + wait;
        let mut node = Channel::dial(&address.to_string(), &secret, deadline).expect("it is authenticated");
        node.send(&ToCoordinator::Join(Join { node: 0, ranks: 1, host: "here".into() })).expect("it is sent");
        let begun = node.receive(wait).expect("an answer");
        assert!(matches!(begun, Received::Message(FromCoordinator::Begin(_))), "{begun:?}");
        drop((node, server));
    }
}
