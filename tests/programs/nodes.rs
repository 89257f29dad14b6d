//! `burn-ddp launch` on several nodes, here several launchers on one machine: they start, stop and restart together.

use crate::common::{
    Outcome, finish, free_port,
    launched::{launch, signal, sorted, start, wait_until},
};
use std::{collections::BTreeSet, fs, net::TcpStream, process::Child, thread, time::Duration};

fn node(nnodes: &str, node: usize, port: u16, more: &str, script: &str) -> Child {
    let flags = format!(
        "--nnodes {nnodes} --node-rank {node} --master-addr 127.0.0.1 --master-port {port} --nproc-per-node {} {more}",
        node + 1
    );
    start(&flags, script, &[])
}

#[test]
fn several_nodes_make_one_world() {
    let port = free_port();
    let script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE; [ $NODE_RANK = $GROUP_RANK ] && [ $MASTER_PORT -gt 0 ]";
    let nodes: Vec<Child> = [1, 0].map(|n| node("2", n, port, "", script)).into();
    let outcomes: Vec<Outcome> = nodes.into_iter().map(|node| finish(node).succeeded()).collect();
    assert_eq!(sorted(&outcomes[1]), ["[rank0] 0 0 3 1 0 2"]);
    assert_eq!(sorted(&outcomes[0]), ["[rank1] 1 0 3 2 1 2", "[rank2] 2 1 3 2 1 2"]);
}

#[test]
fn a_failure_on_one_node_restarts_all_nodes_together() {
    let (port, folder) = (free_port(), tempfile::tempdir().expect("temporary folder"));
    let script = format!(
        "echo $BURN_DDP_SECRET $MASTER_PORT > {}/$TORCHELASTIC_RESTART_COUNT.$RANK
         [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0
         if [ $RANK = 2 ]; then sleep 1; echo my fault; exit 6; fi; exec sleep 300",
        folder.path().display()
    );
    let nodes: Vec<Child> = [0, 1].map(|n| node("2", n, port, "--max-restarts 1", &script)).into();
    for outcome in nodes.into_iter().map(|node| finish(node).succeeded()) {
        for words in ["rank 2 of 3 on node 1", "exited with code 6", "    my fault", "restart 1 of 1"] {
            assert!(outcome.stderr.contains(words), "should say `{words}`: {}", outcome.stderr);
        }
    }
    let told = |round: usize| -> BTreeSet<String> {
        (0..3)
            .map(|rank| fs::read_to_string(folder.path().join(format!("{round}.{rank}"))).expect("it ran"))
            .collect()
    };
    let (first, second) = (told(0), told(1));
    assert_eq!((first.len(), second.len()), (1, 1), "the same for all ranks of a round");
    assert!(first.is_disjoint(&second), "another one for the next round");
}

#[test]
fn a_batch_that_does_not_fit_is_halved_on_all_nodes() {
    let port = free_port();
    // The exit code of a rank without memory: of rank 1 in the first round, and of rank 2 in the second.
    let script = "case \"$RANK $BURN_DDP_BATCH_DIVISOR\" in '1 ' | '2 2') exit 79;; *' ' | *' 2') exec sleep 300;; esac
         echo $BURN_DDP_BATCH_DIVISOR $TORCHELASTIC_RESTART_COUNT";
    let nodes: Vec<Child> = [0, 1].map(|n| node("2", n, port, "", script)).into();
    for outcome in nodes.into_iter().map(|node| finish(node).succeeded()) {
        assert!(sorted(&outcome).iter().all(|line| line.ends_with("] 4 2")), "{outcome:#?}");
        assert_eq!(
            outcome.stderr.matches("restarting all ranks, with half the batch").count(),
            2,
            "{outcome:#?}"
        );
    }
}

#[test]
fn all_nodes_end_with_the_first_failures_code_or_the_signal() {
    let port = free_port();
    let script = "[ $RANK = 1 ] && exit 6; exec sleep 300";
    let nodes: Vec<Child> = [0, 1].map(|n| node("2", n, port, "", script)).into();
    assert_eq!(nodes.into_iter().map(|node| finish(node).code).collect::<Vec<_>>(), [Some(6), Some(6)]);

    let (port, folder) = (free_port(), tempfile::tempdir().expect("temporary folder"));
    let script = format!(": > {}/$RANK; exec sleep 300", folder.path().display());
    let nodes: Vec<Child> = [0, 1].map(|n| node("2", n, port, "", &script)).into();
    wait_until("all ranks run", || (0..3).all(|r| folder.path().join(r.to_string()).exists()));
    signal(nodes[1].id(), libc::SIGTERM);
    assert_eq!(nodes.into_iter().map(|node| finish(node).code).collect::<Vec<_>>(), [Some(143), Some(143)]);
}

#[test]
fn after_the_loss_of_a_node_a_smaller_world_resumes() {
    let (port, folder) = (free_port(), tempfile::tempdir().expect("temporary folder"));
    let script = format!(
        ": > {}/$TORCHELASTIC_RESTART_COUNT.$RANK
         if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then echo a world of $WORLD_SIZE; exit 0; fi
         exec sleep 300",
        folder.path().display()
    );
    let more = "--max-restarts 1 --last-call 0.5";
    let mut nodes: Vec<Child> = [0, 1, 2].map(|n| node("2:3", n, port, more, &script)).into();
    wait_until("all ranks run", || (0..6).all(|r| folder.path().join(format!("0.{r}")).exists()));
    let lost = nodes.remove(1);
    signal(lost.id(), libc::SIGKILL);
    finish(lost);
    let outcomes: Vec<Outcome> = nodes.into_iter().map(|node| finish(node).succeeded()).collect();
    assert!(outcomes[0].stderr.contains("node 1") && outcomes[0].stderr.contains("is lost"), "{outcomes:#?}");
    assert_eq!(sorted(&outcomes[0]), ["[rank0] a world of 4"]);
    assert_eq!(sorted(&outcomes[1]).len(), 3);
}

#[test]
fn incompatible_nodes_are_reported() {
    let port = free_port();
    let outcome = finish(node("2", 0, port, "--join-timeout 1", "true"));
    outcome.failed_with(&["1 of at least 2 nodes have connected: 0 ("]);
    let outcome = finish(node("2", 1, port, "--join-timeout 1", "true"));
    outcome.failed_with(&["node 0's launcher", &port.to_string()]);
    let flags = format!("--nnodes 2 --node-rank 0 --master-addr 0.0.0.0 --master-port {port}");
    launch(&flags, "true").failed_with(&["BURN_DDP_SECRET"]);
    // A launcher with another secret is rejected, and the first keeps waiting.
    let first = node("2", 0, port, "--join-timeout 3", "true");
    let flags = format!("--nnodes 2 --node-rank 1 --master-addr 127.0.0.1 --master-port {port}");
    let other_secret = finish(start(&flags, "true", &[("BURN_DDP_SECRET", "another")]));
    other_secret.failed_with(&["secret"]);
    assert_eq!(finish(first).code, Some(1));
}

#[test]
fn a_node_that_waits_for_node_0_can_be_stopped() {
    let lonely = node("2", 1, free_port(), "", "true");
    let status = format!("/proc/{}/status", lonely.id());
    // Before its handler is installed, the signal would kill the launcher.
    wait_until("it watches for SIGTERM", || {
        let status = fs::read_to_string(&status).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        caught.is_some_and(|mask| mask & 1 << (libc::SIGTERM - 1) != 0)
    });
    signal(lonely.id(), libc::SIGTERM);
    assert_eq!(finish(lonely).code, Some(128 + libc::SIGTERM));
}

#[test]
fn idle_connections_are_limited_and_do_not_keep_a_node_out() {
    let port = free_port();
    let first = node("2", 0, port, "", "true");
    let connect = || TcpStream::connect(("127.0.0.1", port));
    wait_until("node 0 listens", || connect().is_ok());
    let threads = || fs::read_dir(format!("/proc/{}/task", first.id())).map_or(0, Iterator::count);
    let mut most = 0;
    let idle: Vec<_> = (0..1500)
        .map(|_| {
            most = most.max(threads());
            connect().expect("a place in the backlog")
        })
        .collect();
    thread::sleep(Duration::from_millis(200));
    most = most.max(threads());
    // The limit is 1024, besides the threads of a launcher.
    assert!(most < 1100, "{most} threads for {} connections", idle.len());
    let second = node("2", 1, port, "", "true");
    for node in [first, second] {
        finish(node).succeeded();
    }
}
