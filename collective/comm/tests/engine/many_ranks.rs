//! Hundreds of ranks: rendezvous, loss of a rank, and the message about missing ranks.

use crate::{
    common::{free_port, options, ranks},
    process::Rank,
};
use burn_ddp_comm::{Error, InitMethod, Options, ProcessGroup, Result, Transport};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

const SECRET: &str = "a secret for tests";

/// Raises the limit of open files. A rank has up to three.
fn allow_files() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

fn init(port: u16, rank: usize, world: usize, options: Options) -> Result<ProcessGroup> {
    let options = options.transport(Transport::Tcp).rank(rank).world_size(world);
    ProcessGroup::init(InitMethod::Tcp(format!("127.0.0.1:{port}")), options)
}

#[test]
fn hundreds_of_ranks_meet_and_report_a_killed_rank() {
    const WORLD: usize = 300;
    allow_files();
    let port = free_port();
    let variables = [
        ("RANK", (WORLD - 1).to_string()),
        ("WORLD_SIZE", WORLD.to_string()),
        ("MASTER_ADDR", "127.0.0.1".into()),
        ("MASTER_PORT", port.to_string()),
        ("BURN_DDP_SECRET", SECRET.into()),
    ];
    let met = AtomicUsize::new(0);
    let errors = thread::scope(|scope| {
        // It waits in a collective that the others do not call.
        let mut last = Rank::start("tcp 60000 1", &variables);
        let others = scope.spawn(|| {
            ranks(WORLD - 1, |rank| {
                let group = init(port, rank, WORLD, options()).unwrap();
                met.fetch_add(1, Ordering::Relaxed);
                group.store().get("never set", Duration::from_secs(60)).unwrap_err()
            })
        });
        assert!(last.expect("JOINED").is_some());
        // If a rank fails, all do, and this ends.
        while met.load(Ordering::Relaxed) < WORLD - 1 && !others.is_finished() {
            thread::sleep(Duration::from_millis(5));
        }
        drop(last);
        others.join().unwrap()
    });
    for error in errors {
        assert!(matches!(error, Error::PeerLost { rank, .. } if rank == WORLD - 1), "{error:?}");
    }
}

#[test]
fn the_message_about_thousands_of_missing_ranks_is_short() {
    const WORLD: usize = 4096;
    allow_files();
    let port = free_port();
    // Ranks 1, 3, 5 and so on are missing, and all from 200.
    let options = options().rendezvous_timeout(Duration::from_secs(3));
    let errors = ranks(100, |i| init(port, 2 * i, WORLD, options.clone()).unwrap_err());
    for error in errors {
        assert!(matches!(error, Error::Rendezvous { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("ranks 1, 3, 5, 7, ") && text.len() < 300, "{text}");
        assert!(text.contains(", and 3980 more (100 of 4096 came)"), "{text}");
    }
}
