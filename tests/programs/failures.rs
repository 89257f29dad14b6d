//! User errors and failures: one or two lines of error, an exit code other than 0, and no process left.

use crate::common::{
    self, Run, command, example_command, finish,
    launched::{signal, steps, wait_until_gone, wait_within},
    mnist, processes_with, train,
};
use burn_ddp::{InitMethod, Options, ProcessGroup, SECRET, Secret};
use std::{fs, net::TcpListener, process::Child, time::Duration};

/// A run long enough to be interrupted.
const LONG: &str = "--dataset subset --eval-limit 10 --epochs 200 --device cpu --progress plain";

#[test]
fn an_invalid_flag_is_rejected_before_anything_starts() {
    let outcome = train("--batch-size none");
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.stderr.contains("--batch-size") && outcome.stderr.contains("none"), "{}", outcome.stderr);
    train("--mode single --nproc-per-node 2 --device cpu")
        .failed_with(&["--mode single", "--nproc-per-node 2"]);
}

#[test]
fn a_missing_gpu_is_named_with_what_was_tried() {
    let outcome = train("--device cuda");
    if outcome.code == Some(0) {
        eprintln!("SKIPPED: this machine has a GPU");
        return;
    }
    let tried = if cfg!(feature = "cuda") { "libcuda.so" } else { "built without cuda" };
    outcome.failed_with(&["--device cuda", tried]);
}

#[test]
fn a_variable_that_hides_all_gpus_is_named() {
    for (value, words) in [("", "CUDA_VISIBLE_DEVICES is empty"), ("-1", "CUDA_VISIBLE_DEVICES=-1 hides")] {
        let mut hidden = command(&mnist(), &["--device", "cuda"]);
        let outcome = finish(hidden.env("CUDA_VISIBLE_DEVICES", value).spawn().expect("built"));
        let words = if cfg!(feature = "cuda") { words } else { "built without cuda" };
        assert!(!outcome.failed_with(&["--device cuda", words]).contains("nvidia-smi"));
    }
}

#[test]
fn damaged_data_is_named_with_its_file() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).expect("write");
    // The header has a count of 2 images, but the file contains 1.
    let images = [&[0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0, 28][..], &[7; 784]].concat();
    for part in ["train", "t10k"] {
        write(&format!("{part}-images-idx3-ubyte"), &images);
        write(&format!("{part}-labels-idx1-ubyte"), &[0, 0, 8, 1, 0, 0, 0, 2, 3, 4]);
    }
    for ranks in [1, 2] {
        let outcome =
            train(&format!("--device cpu --nproc-per-node {ranks} --data-dir {}", folder.path().display()));
        outcome.failed_with(&["images-idx3-ubyte"]);
    }
}

#[test]
fn a_folder_without_data_names_the_missing_file() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let outcome = train(&format!("--device cpu --mode single --data-dir {}", folder.path().display()));
    outcome.failed_with(&["train-images-idx3-ubyte", &folder.path().display().to_string()]);
}

#[test]
fn without_a_launcher_a_rank_reports_the_loss_of_another() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port().to_string();
    drop(listener);
    let args = format!("{LONG} --run-dir /nonexistent/never-written");
    let mut rank = example_command("mnist_ddp", &args);
    rank.envs([("RANK", "1"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")]);
    rank.envs([("MASTER_PORT", &*port), (SECRET, "shared"), ("BURN_DDP_LAUNCHED", "1")]);
    let rank = rank.spawn().expect("the program");
    let options = Options::default().rank(0).world_size(2).secret(Secret::new("shared").expect("a secret"));
    let group = ProcessGroup::init(InitMethod::Tcp(format!("127.0.0.1:{port}")), options).expect("a group");
    // Rank 0 drops its connection without a message, as after a network failure.
    drop(group);
    let outcome = finish(rank);
    assert_eq!(outcome.code, Some(75), "{outcome:#?}");
    assert!(outcome.stderr.contains("error: rank 1: ") && outcome.stderr.contains("rank 0"), "{outcome:#?}");
}

#[test]
fn a_used_port_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let mut command = command(&mnist(), &["--device", "cpu", "--dataset", "subset"]);
    let vars = [("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_PORT", port.as_str())];
    let outcome = finish(command.envs(vars).spawn().expect("built"));
    outcome.failed_with(&[&port, "127.0.0.1"]);
}

#[test]
fn a_run_folder_is_never_overwritten() {
    let run =
        common::trained("--mode single --dataset subset --train-limit 64 --eval-limit 10 --max-steps 1");
    let before = run.summary();
    let again = train(&format!("{LONG} --mode single --run-dir {}", run.path.display()));
    again.failed_with(&["--run-dir", &run.path.display().to_string()]);
    assert_eq!(run.summary(), before);
}

#[test]
fn a_rejected_start_can_be_repeated_in_the_same_folder() {
    let Run { path: run, .. } = &Run::new();
    let flags = format!(
        "--device cpu --dataset subset --train-limit 64 --eval-limit 10 --batch-size 8 --max-steps 1 --run-dir {}",
        run.display()
    );
    let untouched = |what: &str| {
        let left: Vec<_> = fs::read_dir(run).into_iter().flatten().flatten().map(|e| e.path()).collect();
        assert!(left.is_empty(), "{what} left {left:?}");
    };
    for world in ["--mode single", "--nproc-per-node 2"] {
        train(&format!("{flags} {world} --progress tui")).failed_with(&["--progress tui", "terminal"]);
        untouched(world);
    }
    // The error is on the rank that does not write: rank 1 has a different network.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port().to_string();
    drop(listener);
    let ranks: Vec<Child> = (["", "--batch-norm"].into_iter().enumerate())
        .map(|(rank, more)| {
            let rank = rank.to_string();
            let mut command = example_command("mnist_ddp", &format!("{flags} {more}"));
            command.envs([
                ("RANK", &*rank),
                ("WORLD_SIZE", "2"),
                ("MASTER_PORT", &*port),
                (SECRET, "shared"),
            ]);
            command.spawn().expect("built")
        })
        .collect();
    for rank in ranks {
        let outcome = finish(rank);
        assert!(outcome.code.is_some_and(|code| code != 0), "{outcome:#?}");
    }
    untouched("a rank with another network");
    train(&format!("{flags} --mode single")).succeeded();
    assert!(run.join("summary.json").exists());
}

#[test]
fn weights_that_do_not_fit_are_named() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("one.safetensors");
    // The safetensors format: length of the header, header, data.
    let header = br#"{"module.fc2.bias":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},"fc9.bias":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}}"#;
    let file = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 16]].concat();
    fs::write(&path, file).expect("write");
    let flags = "--device cpu --dataset subset --train-limit 64 --eval-limit 10 --nproc-per-node 2";
    let outcome = train(&format!("{flags} --init-from {}", path.display()));
    let text = outcome.failed_with(&["fc2.bias", "fc9.bias", "conv1.weight", "missing"]);
    assert!(!text.contains("--batch-norm"), "a flag that not every program has: {text}");
    let outcome = train(&format!("{flags} --init-from {}", folder.path().join("none.pt").display()));
    outcome.failed_with(&["none.pt", "no such file"]);
}

/// Starts a long run with a marker in its environment, and waits until both ranks train.
fn long_run(marker: &str, flags: &str) -> (Run, Child, Vec<u32>) {
    let run = Run::new();
    let mut command = example_command("mnist_ddp", &format!("{LONG} {flags} --nproc-per-node 2"));
    command.arg("--run-dir").arg(&run.path).env("BURN_DDP_TEST", marker);
    let child = command.spawn().expect("built");
    wait_within(Duration::from_secs(120), "two steps", || steps(&run.path) > 1);
    let launcher = child.id();
    let ranks = processes_with(marker).into_iter().filter(|&pid| pid != launcher).collect();
    (run, child, ranks)
}

#[test]
fn a_killed_rank_ends_the_job() {
    // With --sync-bn, most collectives are called during forward and backward; with --sync-every, none is called for long.
    for (flags, marker) in [
        ("", "killed-rank-4711"),
        ("--sync-bn", "killed-rank-4714"),
        ("--sync-every 100000", "killed-rank-4715"),
    ] {
        let (_run, child, ranks) = long_run(marker, flags);
        assert_eq!(ranks.len(), 2);
        signal(ranks[1], libc::SIGKILL);
        let outcome = finish(child);
        assert_eq!(outcome.code, Some(128 + libc::SIGKILL), "{outcome:#?}");
        outcome.failed_with(&["killed by signal 9"]);
        wait_until_gone(marker);
    }
}

#[test]
fn a_killed_launcher_leaves_no_rank() {
    let marker = "killed-launcher-4712";
    let (_run, child, _) = long_run(marker, "");
    signal(child.id(), libc::SIGKILL);
    finish(child);
    wait_until_gone(marker);
}

#[test]
fn a_signal_to_the_launcher_stops_all_ranks() {
    let marker = "stopped-launcher-4713";
    let (_run, child, _) = long_run(marker, "");
    signal(child.id(), libc::SIGTERM);
    assert_eq!(finish(child).code, Some(128 + libc::SIGTERM));
    wait_until_gone(marker);
}
