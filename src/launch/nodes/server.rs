//! Threads of the coordinator, which serve the launchers of all machines.

use super::{
    super::job::Job,
    coordinator::{Coordinator, Id},
};
use crate::process::lock;
use anyhow::{Context, Result};
use collective::{
    Secret,
    channel::{Channel, Received},
    listener::{Unproven, listen},
};
use std::{
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
        let coordinator = Arc::new(Mutex::new(Coordinator::new(job, Instant::now())));
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
                    if lock(&coordinator).is_empty() || Instant::now() > until {
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
    lock(coordinator).connect(id, channel.sender());
    loop {
        match channel.receive(Duration::from_secs(1)) {
            Ok(Received::Message(message)) => lock(coordinator).hear(id, message),
            Ok(Received::Nothing) => {}
            Ok(Received::Closed) | Err(_) => break,
        }
    }
    lock(coordinator).gone(id, Instant::now());
}
