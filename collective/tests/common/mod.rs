//! Worlds of threads in the test's process, each with a process group of its own over loopback.

use collective::{InitMethod, Options, ProcessGroup, Secret};
use std::{net::TcpListener, thread, time::Duration};

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub fn options() -> Options {
    Options::default()
        .secret(Secret::new("a secret for tests").unwrap())
        .timeout(Duration::from_secs(60))
        .rendezvous_timeout(Duration::from_secs(30))
}

/// Runs `body` as every rank of a world and returns what each returned.
pub fn world<R: Send>(size: usize, options: Options, body: impl Fn(ProcessGroup) -> R + Sync) -> Vec<R> {
    let method: InitMethod = format!("tcp://127.0.0.1:{}", free_port()).parse().unwrap();
    ranks(size, |rank| {
        let options = options.clone().rank(rank).world_size(size);
        body(ProcessGroup::init(method.clone(), options).unwrap())
    })
}

/// A thread for each rank.
pub fn ranks<R: Send>(size: usize, body: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let body = &body;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..size).map(|rank| scope.spawn(move || body(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
