//! Everything a user can get wrong, and everything that can break under them: one or two lines, an
//! exit code that is not 0, and no process left.

mod common;
use collective::{InitMethod, Options, ProcessGroup, SECRET, Secret};
use common::{command, finish, mnist, processes_with, train};
use std::{
    fs,
    net::TcpListener,
    path::Path,
    process::Child,
    thread,
    time::{Duration, Instant},
};

/// A run long enough to be interrupted.
const LONG: &str =
    "--dataset digits --train-limit 20000 --eval-limit 10 --epochs 50 --device cpu --progress plain";

#[test]
fn a_bad_flag_is_refused_before_anything_starts() {
    let outcome = train("--batch-size none");
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.stderr.contains("--batch-size") && outcome.stderr.contains("none"), "{}", outcome.stderr);
    train("--mode single --nproc-per-node 2 --device cpu")
        .failed_saying(&["--mode single", "--nproc-per-node 2"]);
}

#[test]
fn a_missing_gpu_is_named_with_what_was_tried() {
    let outcome = train("--device cuda");
    if outcome.code == Some(0) {
        eprintln!("SKIPPED: this machine has a GPU");
        return;
    }
    let tried = if cfg!(feature = "cuda") { "libcuda.so" } else { "built without cuda" };
    outcome.failed_saying(&["--device cuda", tried]);
}

#[test]
fn a_variable_that_hides_all_gpus_is_named() {
    for (value, words) in [("", "CUDA_VISIBLE_DEVICES is empty"), ("-1", "CUDA_VISIBLE_DEVICES=-1 hides")] {
        let mut hidden = command(&mnist(), &["--device", "cuda"]);
        let outcome = finish(hidden.env("CUDA_VISIBLE_DEVICES", value).spawn().expect("built"));
        let words = if cfg!(feature = "cuda") { words } else { "built without cuda" };
        assert!(!outcome.failed_saying(&["--device cuda", words]).contains("nvidia-smi"));
    }
}

#[test]
fn damaged_data_is_named_with_its_file() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).expect("write");
    // 2 images promised, 1 there.
    let images = [&[0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0, 28][..], &[7; 784]].concat();
    for part in ["train", "t10k"] {
        write(&format!("{part}-images-idx3-ubyte"), &images);
        write(&format!("{part}-labels-idx1-ubyte"), &[0, 0, 8, 1, 0, 0, 0, 2, 3, 4]);
    }
    for ranks in [1, 2] {
        let outcome =
            train(&format!("--device cpu --nproc-per-node {ranks} --data-dir {}", folder.path().display()));
        outcome.failed_saying(&["images-idx3-ubyte"]);
    }
}

#[test]
fn a_folder_without_data_says_which_file_is_missing() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let outcome = train(&format!("--device cpu --mode single --data-dir {}", folder.path().display()));
    outcome.failed_saying(&["train-images-idx3-ubyte", &folder.path().display().to_string()]);
}

#[test]
fn a_rank_that_loses_another_says_so_if_no_launcher_ends_it() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port().to_string();
    drop(listener);
    let args = format!("{LONG} --run-dir /nonexistent/never-written");
    let mut rank = command(&mnist(), &args.split_whitespace().collect::<Vec<_>>());
    rank.envs([("RANK", "1"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")]);
    rank.envs([("MASTER_PORT", &*port), (SECRET, "shared"), ("BURN_DDP_LAUNCHED", "1")]);
    let rank = rank.spawn().expect("the program");
    let options = Options::default().rank(0).world_size(2).secret(Secret::new("shared").expect("a secret"));
    let group = ProcessGroup::init(InitMethod::Tcp(format!("127.0.0.1:{port}")), options).expect("a group");
    // This rank 0 leaves without a word, as one does whose cable is pulled.
    drop(group);
    let outcome = finish(rank);
    assert_eq!(outcome.code, Some(75), "{outcome:#?}");
    assert!(outcome.stderr.contains("error: rank 1: ") && outcome.stderr.contains("rank 0"), "{outcome:#?}");
}

#[test]
fn a_used_port_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let mut command = command(&mnist(), &["--device", "cpu", "--dataset", "digits"]);
    let vars = [("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_PORT", port.as_str())];
    let outcome = finish(command.envs(vars).spawn().expect("built"));
    outcome.failed_saying(&[&port, "127.0.0.1"]);
}

#[test]
fn a_run_folder_is_never_overwritten() {
    let run =
        common::trained("--mode single --dataset digits --train-limit 64 --eval-limit 10 --max-steps 1");
    let before = run.summary();
    let again = train(&format!("{LONG} --mode single --run-dir {}", run.path.display()));
    again.failed_saying(&["--run-dir", &run.path.display().to_string()]);
    assert_eq!(run.summary(), before);
}

#[test]
fn a_start_that_is_refused_can_be_repeated_in_the_same_folder() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let run = folder.path().join("run");
    let flags = format!(
        "--device cpu --dataset digits --train-limit 64 --eval-limit 10 --batch-size 8 --max-steps 1 --run-dir {}",
        run.display()
    );
    let untouched = |what: &str| {
        let left: Vec<_> = fs::read_dir(&run).into_iter().flatten().flatten().map(|e| e.path()).collect();
        assert!(left.is_empty(), "{what} left {left:?}");
    };
    for world in ["--mode single", "--nproc-per-node 2"] {
        train(&format!("{flags} {world} --progress tui")).failed_saying(&["--progress tui", "terminal"]);
        untouched(world);
    }
    // The refusal of a rank that writes nothing: rank 1 has another network than rank 0.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port().to_string();
    drop(listener);
    let ranks: Vec<Child> = (["", "--batch-norm"].into_iter().enumerate())
        .map(|(rank, more)| {
            let rank = rank.to_string();
            let args: Vec<&str> = flags.split(' ').chain(more.split_whitespace()).collect();
            let mut command = command(&mnist(), &args);
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
    // The safetensors format: length of the header, the header, the data.
    let header = br#"{"module.fc2.bias":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},"fc9.bias":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}}"#;
    let file = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 16]].concat();
    fs::write(&path, file).expect("write");
    let flags = "--device cpu --dataset digits --train-limit 64 --eval-limit 10 --nproc-per-node 2";
    let outcome = train(&format!("{flags} --init-from {}", path.display()));
    outcome.failed_saying(&["fc2.bias", "fc9.bias", "conv1.weight", "missing"]);
    let outcome = train(&format!("{flags} --init-from {}", folder.path().join("none.pt").display()));
    outcome.failed_saying(&["none.pt", "no such file"]);
}

/// Starts a long run marked in its environment, and waits until both ranks train.
fn long_run(marker: &str, run_dir: &Path, flags: &str) -> (Child, Vec<u32>) {
    let flags = LONG.split_whitespace().chain(flags.split_whitespace());
    let args: Vec<&str> = flags.collect();
    let mut command = command(&mnist(), &args);
    command.arg("--run-dir").arg(run_dir).args(["--nproc-per-node", "2"]).env("BURN_DDP_TEST", marker);
    let child = command.spawn().expect("built");
    let deadline = Instant::now() + Duration::from_secs(120);
    let trains = || fs::read_to_string(run_dir.join("steps.csv")).is_ok_and(|t| t.lines().count() > 2);
    while !trains() {
        assert!(Instant::now() < deadline, "no step within 2 minutes");
        thread::sleep(Duration::from_millis(50));
    }
    let launcher = child.id();
    let ranks = processes_with(marker).into_iter().filter(|&pid| pid != launcher).collect();
    (child, ranks)
}

/// Waits until no process of the run is left.
fn gone(marker: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !processes_with(marker).is_empty() {
        assert!(Instant::now() < deadline, "left behind: {:?}", processes_with(marker));
        thread::sleep(Duration::from_millis(50));
    }
}

fn signal(pid: u32, signal: i32) {
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0, "process {pid} is there");
}

#[test]
fn a_killed_rank_ends_the_job() {
    // With --sync-bn, most collectives are called from inside the network.
    for (flags, marker) in [("", "killed-rank-4711"), ("--sync-bn", "killed-rank-4714")] {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (child, ranks) = long_run(marker, &folder.path().join("run"), flags);
        assert_eq!(ranks.len(), 2);
        signal(ranks[1], libc::SIGKILL);
        let outcome = finish(child);
        assert_eq!(outcome.code, Some(128 + libc::SIGKILL), "{outcome:#?}");
        outcome.failed_saying(&["killed by signal 9"]);
        gone(marker);
    }
}

#[test]
fn a_killed_launcher_leaves_no_rank() {
    let (folder, marker) = (tempfile::tempdir().expect("temporary folder"), "killed-launcher-4712");
    let (child, _) = long_run(marker, &folder.path().join("run"), "");
    signal(child.id(), libc::SIGKILL);
    finish(child);
    gone(marker);
}

#[test]
fn a_launcher_told_to_stop_stops_all() {
    let (folder, marker) = (tempfile::tempdir().expect("temporary folder"), "stopped-launcher-4713");
    let (child, _) = long_run(marker, &folder.path().join("run"), "");
    signal(child.id(), libc::SIGTERM);
    assert_eq!(finish(child).code, Some(128 + libc::SIGTERM));
    gone(marker);
}
