//! Coordinator in node 0's launcher: listens for the launchers of all machines and decides how rounds begin
//! and end.

use super::{
    super::{outcome::Outcome, port::MasterPort},
    Begin, FromCoordinator, Rules, ToCoordinator,
    table::{Id, Table},
};
use anyhow::{Context, Result};
use collective::{
    Secret,
    channel::{Channel, Received, Sender},
};
use std::{
    collections::BTreeMap,
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

const TICK: Duration = Duration::from_millis(20);
/// Time that the coordinator stays for launchers that have not received the last outcome.
const GOODBYE: Duration = Duration::from_secs(3);
/// Maximum number of connected launchers.
const MOST: usize = 4096;

/// The coordinator's thread. Dropping it stops the thread, once the agents have disconnected.
#[derive(Debug)]
pub struct CoordinatorServer {
    closing: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

/// An event on a connection.
enum News {
    Came(Sender),
    Said(ToCoordinator),
    Gone,
}

impl CoordinatorServer {
    /// Starts to serve at `listener`. `run_id` and `max_restarts` are node 0's and hold for all machines.
    ///
    /// # Errors
    /// If the listener cannot be used.
    pub fn start(
        listener: TcpListener,
        secret: Secret,
        rules: Rules,
        run_id: String,
        max_restarts: usize,
    ) -> Result<Self> {
        listener.set_nonblocking(true).context("cannot listen for other nodes")?;
        let closing = Arc::new(AtomicBool::new(false));
        let (send, receive) = mpsc::channel();
        let mut coordinator = Coordinator {
            table: Table::new(rules, Instant::now()),
            senders: BTreeMap::new(),
            restarts: 0,
            max_restarts,
            run_id,
            port: None,
        };
        let stop = closing.clone();
        let thread = thread::spawn(move || {
            let mut next: Id = 0;
            let mut until = None;
            loop {
                accept(&listener, &secret, &mut next, &send, coordinator.senders.len());
                while let Ok((id, news)) = receive.try_recv() {
                    coordinator.hear(id, news);
                }
                coordinator.decide();
                if stop.load(Ordering::SeqCst) {
                    let until = *until.get_or_insert_with(|| Instant::now() + GOODBYE);
                    if coordinator.table.is_empty() || Instant::now() > until {
                        return;
                    }
                }
                thread::sleep(TICK);
            }
        });
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

/// Starts a thread for every new connection, which authenticates it and receives its messages.
fn accept(
    listener: &TcpListener,
    secret: &Secret,
    next: &mut Id,
    send: &mpsc::Sender<(Id, News)>,
    connected: usize,
) {
    while let Ok((stream, _)) = listener.accept() {
        if connected > MOST {
            continue;
        }
        let (id, secret, send) = (*next, secret.clone(), send.clone());
        *next += 1;
        thread::spawn(move || {
            // Unauthenticated peers are dropped silently.
            let Ok(mut channel) = Channel::answer(stream, &secret) else { return };
            if send.send((id, News::Came(channel.sender()))).is_err() {
                return;
            }
            loop {
                let news = match channel.receive(Duration::from_secs(1)) {
                    Ok(Received::Message(message)) => News::Said(message),
                    Ok(Received::Nothing) => continue,
                    Ok(Received::Closed) | Err(_) => News::Gone,
                };
                let last = matches!(news, News::Gone);
                if send.send((id, news)).is_err() || last {
                    return;
                }
            }
        });
    }
}

/// The state of the coordinator: the machines and their connections.
struct Coordinator {
    table: Table,
    senders: BTreeMap<Id, Sender>,
    restarts: usize,
    max_restarts: usize,
    run_id: String,
    /// Master port of the current round.
    port: Option<MasterPort>,
}

impl Coordinator {
    fn hear(&mut self, id: Id, news: News) {
        let now = Instant::now();
        let outcome = match news {
            News::Came(sender) => {
                self.senders.insert(id, sender);
                None
            }
            News::Said(ToCoordinator::Join(join)) => {
                if let Err(why) = self.table.join(id, &join) {
                    self.tell(id, &FromCoordinator::Refused(why));
                }
                None
            }
            News::Said(ToCoordinator::Ended { restarts, .. }) if restarts != self.restarts => None,
            News::Said(ToCoordinator::Ended { ending, .. }) => self.table.ended(id, ending, now),
            News::Gone => {
                self.senders.remove(&id);
                self.table.gone(id, now)
            }
        };
        if let Some((members, ending)) = outcome {
            self.end(&members, ending);
        }
    }

    fn end(&mut self, members: &[Id], ending: Outcome) {
        let restarts = self.restarts;
        for id in members {
            self.tell(*id, &FromCoordinator::End { restarts, ending: ending.clone() });
        }
        self.restarts += 1;
        self.port = None;
    }

    /// Begins a round if enough machines have joined, or refuses all if the time-out has expired.
    fn decide(&mut self) {
        let now = Instant::now();
        if let Some(members) = self.table.begin(now) {
            let port = match MasterPort::reserved() {
                Ok(port) => port,
                Err(error) => return self.refuse(&format!("{error:#}")),
            };
            let sizes: Vec<usize> = members.iter().map(|(_, ranks)| *ranks).collect();
            for (node, (id, _)) in members.iter().enumerate() {
                let begin = Begin {
                    restarts: self.restarts,
                    max_restarts: self.max_restarts,
                    node,
                    sizes: sizes.clone(),
                    master_port: port.number(),
                    run_id: self.run_id.clone(),
                };
                self.tell(*id, &FromCoordinator::Begin(begin));
            }
            self.port = Some(port);
        } else if let Some(why) = self.table.too_late(now) {
            self.refuse(&why);
        }
    }

    fn refuse(&mut self, why: &str) {
        for id in self.senders.keys() {
            self.tell(*id, &FromCoordinator::Refused(why.to_owned()));
        }
    }

    fn tell(&self, id: Id, message: &FromCoordinator) {
        if let Some(sender) = self.senders.get(&id) {
            sender.send(message);
        }
    }
}
