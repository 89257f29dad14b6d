//! Two machines, as network namespaces with a connection that can be cut. Needs root and iproute2.
//!
//! Otherwise the test prints a warning past the test harness, and fails if the environment variable `CI` or
//! `BURN_DDP_REQUIRE_NETNS` is set.

use crate::{common::concurrently, process::Rank};
use burn_ddp_comm::Error;
use std::{
    env,
    io::Write,
    path::Path,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
const SECRET: Option<&str> = Some("a secret for tests");

/// Runs `ip`; returns its error message if it fails.
fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.map_err(|error| format!("the command ip of iproute2 cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("`ip {arguments}` failed: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// Two network namespaces and the connection between them, removed when dropped.
struct Machines {
    names: [String; 2],
}

impl Machines {
    /// Creates the namespaces; prints a warning and returns `None` if that is impossible.
    fn new() -> Option<Self> {
        let why = match Self::build() {
            Ok(machines) => return Some(machines),
            Err(why) => why,
        };
        let set = |name: &&str| env::var(name).is_ok_and(|value| !matches!(&*value, "" | "0" | "false"));
        if let Some(name) = ["CI", "BURN_DDP_REQUIRE_NETNS"].into_iter().find(set) {
            panic!("{name} is set, but there are no network namespaces: {why}");
        }
        let test = thread::current().name().unwrap_or("a test").to_string();
        // The harness captures `eprintln`.
        let _ = writeln!(std::io::stderr(), "NOT RUN: {test} needs root and iproute2: {why}");
        None
    }

    fn build() -> Result<Self, String> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = |end: &str| format!("ddp-test-{}-{number}{end}", std::process::id());
        // Created first, so that its drop removes partial results.
        let machines = Machines { names: [name("a"), name("b")] };
        let [a, b] = &machines.names;
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!("-n {a} link add cable type veth peer name cable netns {b}"))?;
        for (name, address) in machines.names.iter().zip(ADDRESSES) {
            ip(&format!("-n {name} addr add {address}/24 dev cable"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} link set cable up"))?;
        }
        Ok(machines)
    }

    /// Cuts the connection at one end.
    fn pull(&self, machine: usize) {
        ip(&format!("-n {} link set cable down", self.names[machine])).unwrap();
    }

    /// Starts `each` ranks on both machines, the lower ones on the first.
    fn start(&self, each: usize, role: &str, secret: Option<&str>) -> Vec<Rank> {
        let start = |rank: usize| {
            let name = &self.names[rank / each];
            let mut variables = vec![
                ("RANK", rank.to_string()),
                ("WORLD_SIZE", (2 * each).to_string()),
                ("MASTER_ADDR", ADDRESSES[0].into()),
                ("MASTER_PORT", "29500".into()),
                // The namespaces share the kernel and the processes; without this they count as one machine.
                ("BURN_DDP_HOST_ID", name.clone()),
            ];
            variables.extend(secret.map(|secret| ("BURN_DDP_SECRET", secret.into())));
            let mut command = Command::new("ip");
            command.args(["netns", "exec", name]).arg(env::current_exe().unwrap());
            Rank::start_by(command, role, &variables)
        };
        (0..2 * each).map(start).collect()
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns delete {name}"));
        }
    }
}

#[test]
fn namespaces_are_removed_after_a_panic() {
    let Some(machines) = Machines::new() else { return };
    let files = machines.names.clone().map(|name| Path::new("/run/netns").join(name));
    assert!(files.iter().all(|file| file.exists()));
    let using = thread::spawn(move || {
        let _machines = machines;
        panic!("on purpose")
    });
    assert!(using.join().is_err());
    assert!(!files.iter().any(|file| file.exists()));
}

#[test]
fn two_machines_reduce_and_exit() {
    let Some(machines) = Machines::new() else { return };
    for (each, transport) in [(1, "tcp"), (2, "shm+tcp")] {
        for mut rank in machines.start(each, "auto 60000 40", SECRET) {
            assert_eq!(rank.expect("JOINED ").as_deref(), Some(transport));
            assert_eq!(rank.ended(), None);
            assert!(rank.process.wait().unwrap().success());
        }
    }
}

#[test]
fn two_machines_require_a_secret() {
    let Some(machines) = Machines::new() else { return };
    for mut rank in machines.start(1, "auto 60000 1", None) {
        let error = rank.ended().expect("an error");
        assert!(
            matches!(&error, Error::Invalid(why) if why.contains("set BURN_DDP_SECRET") && why.contains(ADDRESSES[0])),
            "{error:?}"
        );
    }
}

/// Cuts the connection while `each` ranks on both machines are working.
fn pull_the_cable(each: usize, timeout: Duration) {
    concurrently([0, 1], |end| {
        let Some(machines) = Machines::new() else { return };
        let mut ranks = machines.start(each, &format!("auto {} 1000000", timeout.as_millis()), SECRET);
        for rank in &mut ranks {
            rank.expect("JOINED").expect("the rank to join");
        }
        thread::sleep(Duration::from_millis(500));
        machines.pull(end);
        let pulled = Instant::now();
        for (rank, process) in ranks.iter_mut().enumerate() {
            let error = process.ended().expect("an error");
            let far = if rank < each { each..2 * each } else { 0..each };
            let named = match error.cause() {
                Error::PeerLost { rank, .. } => far.contains(rank),
                Error::Timeout { absent, .. } => {
                    far.clone().any(|rank| absent.contains(&format!("rank {rank} does not answer")))
                }
                _ => false,
            };
            println!("end {end} pulled, rank {rank} after {:.1?}: {error}", pulled.elapsed());
            assert!(named, "rank {rank} reports {error}, not a rank of {far:?}");
            assert!(pulled.elapsed() < Duration::from_secs(20), "{:?}", pulled.elapsed());
        }
    });
}

#[test]
fn a_cut_connection_is_detected_before_a_long_deadline() {
    pull_the_cable(1, Duration::from_secs(60));
    pull_the_cable(2, Duration::from_secs(60));
}

#[test]
fn a_cut_connection_times_out_at_a_short_deadline() {
    pull_the_cable(1, Duration::from_secs(2));
    pull_the_cable(2, Duration::from_secs(2));
}
