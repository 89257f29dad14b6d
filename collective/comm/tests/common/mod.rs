//! Worlds of threads in the test's process, each with its own process group over loopback.

#![allow(dead_code, reason = "not every test file uses all of it")]

use burn_ddp_comm::{Error, InitMethod, Options, ProcessGroup, Secret, Transport};
use std::{
    net::TcpListener,
    sync::{
        Mutex,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

/// A free port below those that the system assigns, so that no other program gets it before its use.
pub fn free_port() -> u16 {
    static DRAWN: AtomicU16 = AtomicU16::new(0);
    // 100 ports for each process.
    let first = 10_000 + (std::process::id() % 200) as u16 * 100;
    let mut ports = (0..100).map(|_| first + DRAWN.fetch_add(1, Relaxed) % 100);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port")
}

pub fn options() -> Options {
    Options::default()
        .secret(Secret::new("a secret for tests").unwrap())
        .timeout(Duration::from_secs(60))
        .rendezvous_timeout(Duration::from_secs(30))
}

/// Calls a collective until it fails, as a rank that was not inside one when another failed.
pub fn first_error(group: &ProcessGroup) -> Error {
    loop {
        if let Err(error) = group.barrier() {
            return error;
        }
    }
}

/// The ways in which the ranks of a test are connected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Tcp,
    Shm,
    Thread,
    /// Two ranks per machine, according to their host ids.
    Hierarchical,
}

/// Runs a test for all `cases` concurrently, because most of its time is waiting.
pub fn concurrently<C: Send>(cases: impl IntoIterator<Item = C>, test: impl Fn(C) + Sync) {
    thread::scope(|scope| {
        let test = &test;
        for case in cases {
            scope.spawn(move || test(case));
        }
    });
}

/// Runs a test [`concurrently`] in every kind of world.
pub fn in_every_kind(test: impl Fn(Kind) + Sync) {
    concurrently(KINDS, test);
}

pub const KINDS: [Kind; 4] = [Kind::Tcp, Kind::Shm, Kind::Thread, Kind::Hierarchical];

/// Runs `body` on every rank of a world and returns the results in rank order.
pub fn world<R: Send>(
    kind: Kind,
    size: usize,
    options: Options,
    body: impl Fn(ProcessGroup) -> R + Sync,
) -> Vec<R> {
    let transport = match kind {
        Kind::Tcp => Transport::Tcp,
        Kind::Shm => Transport::Shm,
        Kind::Thread => {
            let groups = ProcessGroup::threads(size, options).unwrap();
            let groups: Vec<_> = groups.into_iter().map(|group| Mutex::new(Some(group))).collect();
            return ranks(size, |rank| body(groups[rank].lock().unwrap().take().unwrap()));
        }
        Kind::Hierarchical => Transport::Auto,
    };
    let method: InitMethod = format!("tcp://127.0.0.1:{}", free_port()).parse().unwrap();
    ranks(size, |rank| {
        let mut options = options.clone().transport(transport).rank(rank).world_size(size);
        if kind == Kind::Hierarchical {
            options = options.host_id(format!("machine {}", rank / 2));
        }
        body(ProcessGroup::init(method.clone(), options).unwrap())
    })
}

/// Runs `body` on a thread per rank.
pub fn ranks<R: Send>(size: usize, body: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let body = &body;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..size).map(|rank| scope.spawn(move || body(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
