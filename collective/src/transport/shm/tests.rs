//! A job that fails while its ranks join the memory.

use crate::{
    Error, FileStore, InitMethod, Options, ProcessGroup, Store, Transport,
    rendezvous::{
        config,
        control::{Control, Joining, connect},
        wait::RendezvousWait,
        wire::Member,
    },
};
use std::{thread, time::Duration};

/// Much longer than the propagation of a failure.
const PATIENT: Duration = Duration::from_secs(30);

#[test]
fn a_failure_while_ranks_join_is_reported_by_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rendezvous");
    let cause = thread::scope(|scope| {
        let zero = scope.spawn(|| {
            let options = Options::default().rank(0).world_size(2).transport(Transport::Shm);
            let options = options.host_id("one").rendezvous_timeout(PATIENT);
            ProcessGroup::init(InitMethod::File(path.clone()), options).err()
        });
        // Rank 1 completes all steps before joining, and fails instead of joining.
        let mut wait = RendezvousWait::new(PATIENT, None);
        let deadline = wait.deadline;
        let value = FileStore::new(folder.path()).get("rendezvous", PATIENT).unwrap();
        let (address, secret) = config::parse(&String::from_utf8(value).unwrap()).unwrap();
        let stream = connect(&address, &secret, &mut wait, deadline).unwrap();
        let member = Member {
            data: stream.local_addr().unwrap(),
            host: "here".into(),
            machine: "one".into(),
            pid: std::process::id(),
            transport: "shm".into(),
        };
        let joining = Joining { rank: 1, world: 2, job: None, member, server: None };
        let one = Control::join(stream, joining, &mut wait).unwrap();
        assert!(one.get("shm/0/1/name", deadline).unwrap().starts_with(b"+"));
        one.set("shm/0/1/1", b"+");
        assert_eq!(one.get("shm/0/1/verdict", deadline).unwrap(), b"+");
        // Long enough for rank 0 to wait in the memory, which is not needed for the test to pass.
        thread::sleep(Duration::from_millis(300));
        one.fail(Error::Invalid("out of patience".into()));
        zero.join().unwrap().expect("rank 0 to fail")
    });
    assert_eq!(cause.cause(), &Error::Invalid("out of patience".into()));
}
