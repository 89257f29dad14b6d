//! Graceful shutdown by Ctrl-C, SIGTERM, SIGUSR1 and SIGUSR2: all ranks finish the step, write a checkpoint and exit.

use super::SMALL;
use crate::common::{
    Run, example_command, finish,
    launched::{signal, steps, wait_until_gone, wait_within},
    processes_with, train, trained,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Child,
    thread,
    time::{Duration, Instant},
};

/// Flags of a run with more epochs than it can complete.
fn endless() -> String {
    SMALL.replace("--epochs 2", "--epochs 2000").replace("--keep-last 100", "--keep-last 2")
}

/// Starts a run and waits for its first step.
fn started(marker: &str, flags: &str, run_dir: &Path) -> Child {
    let args = format!("--device cpu --progress plain {flags} --run-dir {}", run_dir.display());
    let child = example_command("mnist_ddp", &args).env("BURN_DDP_TEST", marker).spawn().expect("built");
    wait_within(Duration::from_secs(120), "two steps", || steps(run_dir) > 1);
    child
}

/// Processes that a test sends a signal to.
#[derive(Clone, Copy, Debug)]
enum Target {
    Launcher,
    /// The process group, as a terminal does. The ranks receive the signal twice: directly and from the launcher.
    ProcessGroup,
    OneRank,
}

#[test]
fn a_signal_stops_all_ranks_after_the_same_step() {
    for (name, flags, whom, number) in [
        ("stop-1", "--nproc-per-node 2 --batch-size 8 --batch-norm", Target::OneRank, libc::SIGTERM),
        ("stop-2", "--nproc-per-node 2 --batch-size 8 --batch-norm", Target::ProcessGroup, libc::SIGINT),
        ("stop-3", "--nproc-per-node 3 --batch-size 5", Target::Launcher, libc::SIGTERM),
        ("stop-4", "--mode single --batch-size 16", Target::Launcher, libc::SIGINT),
        ("stop-5", "--nproc-per-node 2 --batch-size 8", Target::ProcessGroup, libc::SIGUSR1),
        ("stop-6", "--nproc-per-node 2 --batch-size 8", Target::OneRank, libc::SIGUSR2),
    ] {
        let run = Run::new();
        let child = started(name, &format!("{} {flags}", endless()), &run.path);
        match whom {
            Target::Launcher => signal(child.id(), number),
            Target::ProcessGroup => assert_eq!(unsafe { libc::kill(-(child.id() as i32), number) }, 0),
            Target::OneRank => {
                let ranks: Vec<u32> =
                    processes_with(name).into_iter().filter(|pid| *pid != child.id()).collect();
                signal(*ranks.last().expect("a rank"), number);
            }
        }
        let outcome = finish(child);
        assert_eq!(outcome.code, Some(128 + number), "{name} {whom:?}: {outcome:#?}");
        assert_eq!(outcome.stderr, "", "{name}");
        let name_of_signal = match number {
            libc::SIGINT => "SIGINT",
            libc::SIGTERM => "SIGTERM",
            libc::SIGUSR1 => "SIGUSR1",
            _ => "SIGUSR2",
        };
        let said = format!("stopped by {name_of_signal}");
        assert!(outcome.stdout.contains(&said) && outcome.stdout.contains("--resume"), "{outcome:#?}");
        assert!(run.path.join("report.html").exists(), "{name}: it can be looked at");
        wait_until_gone(name);
        // Two more steps, bit-identical to a run that was never stopped.
        let steps = run.losses().len();
        let flags = format!("{} {flags} --max-steps {}", endless(), steps + 2);
        train(&format!("--device cpu {flags} --resume {}", run.path.display())).succeeded();
        assert_eq!(run.digest(), trained(&flags).digest(), "{name}");
    }
}

/// Writes `count` blank images in MNIST's format, more than the subset has.
fn blank_images(folder: &Path, count: u32) -> PathBuf {
    let data = folder.join("data");
    fs::create_dir(&data).expect("a folder");
    for split in ["train", "t10k"] {
        for (kind, dimensions) in [("images-idx3", &[count, 28, 28][..]), ("labels-idx1", &[count][..])] {
            let magic = 0x0800 + dimensions.len() as u32;
            let header = [&[magic], dimensions].concat().into_iter().flat_map(u32::to_be_bytes);
            let items = vec![0; dimensions.iter().product::<u32>() as usize];
            let file = header.chain(items).collect::<Vec<u8>>();
            fs::write(data.join(format!("{split}-{kind}-ubyte")), file).expect("written");
        }
    }
    data
}

#[test]
fn a_second_signal_ends_a_run_at_once() {
    for (name, flags) in [("twice-1", "--nproc-per-node 2"), ("twice-2", "--mode single")] {
        let folder = tempfile::tempdir().expect("temporary folder");
        let data = blank_images(folder.path(), 20_000);
        // One step takes minutes.
        let flags = format!("--data-dir {} --eval-limit 20 {flags}", data.display());
        let path = folder.path().join("run");
        let args = format!("--device cpu --batch-size 10000 {flags} --run-dir {}", path.display());
        let child = example_command("mnist_ddp", &args).env("BURN_DDP_TEST", name).spawn().expect("built");
        wait_within(Duration::from_secs(120), "the start", || path.join("config.json").exists());
        thread::sleep(Duration::from_secs(1));
        signal(child.id(), libc::SIGINT);
        // Longer than repeated signals count as one.
        thread::sleep(Duration::from_millis(2500));
        let second = Instant::now();
        signal(child.id(), libc::SIGINT);
        let outcome = finish(child);
        assert_eq!(outcome.code, Some(128 + libc::SIGINT), "{outcome:#?}");
        assert!(second.elapsed() < Duration::from_secs(25), "took {:?}", second.elapsed());
        wait_until_gone(name);
    }
}

#[test]
fn a_second_training_in_the_folder_of_a_running_one_is_refused() {
    let run = Run::new();
    let flags = format!("{} --mode single --batch-size 16", endless());
    let first = started("second-training", &flags, &run.path);
    let path = run.path.display().to_string();
    for second in
        [format!("--run-dir {path}"), format!("--run-dir {path} --resume"), format!("--resume {path}")]
    {
        let second = train(&format!("--device cpu --progress plain {flags} {second}"));
        second.failed_with(&["another training is writing to", &path]);
    }
    signal(first.id(), libc::SIGTERM);
    assert_eq!(finish(first).code, Some(143));
    train(&format!("--device cpu --progress plain {flags} --max-steps 1 --resume {path}")).succeeded();
}
