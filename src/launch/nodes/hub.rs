//! Node 0's side: listens for the launchers of all machines, its own too, and decides for them.

use super::{
    super::{ending::Ending, port::MasterPort},
    Begin, FromHub, Rules, ToHub,
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
/// How long the hub stays for launchers that have not heard the last verdict.
const GOODBYE: Duration = Duration::from_secs(3);
/// Launchers that may be connected at a time.
const MOST: usize = 4096;

/// The running hub; dropping it ends it, once the others have gone.
#[derive(Debug)]
pub struct Hub {
    closing: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

/// What a connection's thread reports.
enum News {
    Came(Sender),
    Said(ToHub),
    Gone,
}

impl Hub {
    /// Begins to serve at `listener`. `run_id` and `max_restarts` are what node 0 says for all.
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
        let mut desk = Desk {
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
                accept(&listener, &secret, &mut next, &send, desk.senders.len());
                while let Ok((id, news)) = receive.try_recv() {
                    desk.hear(id, news);
                }
                desk.decide();
                if stop.load(Ordering::SeqCst) {
                    let until = *until.get_or_insert_with(|| Instant::now() + GOODBYE);
                    if desk.table.is_empty() || Instant::now() > until {
                        return;
                    }
                }
                thread::sleep(TICK);
            }
        });
        Ok(Hub { closing, thread: Some(thread) })
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Gives every new connection a thread that proves the secret and listens.
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
            // A stranger is not worth a word.
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

/// The table and the ways to those who sit at it.
struct Desk {
    table: Table,
    senders: BTreeMap<Id, Sender>,
    restarts: usize,
    max_restarts: usize,
    run_id: String,
    /// Of the round that runs.
    port: Option<MasterPort>,
}

impl Desk {
    fn hear(&mut self, id: Id, news: News) {
        let now = Instant::now();
        let verdict = match news {
            News::Came(sender) => {
                self.senders.insert(id, sender);
                None
            }
            News::Said(ToHub::Join(join)) => {
                if let Err(why) = self.table.join(id, &join) {
                    self.tell(id, &FromHub::Refused(why));
                }
                None
            }
            News::Said(ToHub::Ended { restarts, .. }) if restarts != self.restarts => None,
            News::Said(ToHub::Ended { ending, .. }) => self.table.ended(id, ending, now),
            News::Gone => {
                self.senders.remove(&id);
                self.table.gone(id, now)
            }
        };
        if let Some((members, ending)) = verdict {
            self.end(&members, ending);
        }
    }

    fn end(&mut self, members: &[Id], ending: Ending) {
        let restarts = self.restarts;
        for id in members {
            self.tell(*id, &FromHub::End { restarts, ending: ending.clone() });
        }
        self.restarts += 1;
        self.port = None;
    }

    /// Begins a round if it is time, or gives up.
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
                self.tell(*id, &FromHub::Begin(begin));
            }
            self.port = Some(port);
        } else if let Some(why) = self.table.too_late(now) {
            self.refuse(&why);
        }
    }

    fn refuse(&mut self, why: &str) {
        for id in self.senders.keys() {
            self.tell(*id, &FromHub::Refused(why.to_owned()));
        }
    }

    fn tell(&self, id: Id, message: &FromHub) {
        if let Some(sender) = self.senders.get(&id) {
            sender.send(message);
        }
    }
}
