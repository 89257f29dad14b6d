//! `burn-ddp doctor` on this machine and between two machines.

use crate::common::{command, finish, mnist, program};
use std::{
    io::{BufRead, BufReader},
    process::Child,
};

/// A listening process, killed when dropped.
struct Listening(Child);

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn every_line_is_ok_or_has_a_remedy() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let mut doctor = command(&program(), &["doctor"]);
    doctor.current_dir(&folder).env("XDG_CACHE_HOME", folder.path());
    let outcome = finish(doctor.spawn().expect("built")).succeeded();
    for check in
        ["cores", "memory", "shared memory", "open files", "disk", "GPUs", "NCCL", "NVRTC", "loopback"]
    {
        assert!(
            outcome.stdout.lines().any(|line| line[6..].starts_with(check)),
            "no {check}: {}",
            outcome.stdout
        );
    }
    for line in outcome.stdout.lines() {
        assert!(line.starts_with("ok    ") || (line.starts_with("note  ") && line.contains(" → ")), "{line}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0, "it leaves nothing");
}

#[test]
fn a_failed_requirement_gives_exit_code_1() {
    let script =
        format!("ulimit -n 64; exec {} doctor --peer 127.0.0.1:1 --timeout 0.2", program().display());
    let outcome = finish(command("sh".as_ref(), &["-c", &script]).spawn().expect("sh"));
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    for (start, advice) in [
        ("FAIL  open files    at most 64 per process → ", "ulimit -n 4096"),
        ("FAIL  peer          127.0.0.1:1: ", "doctor --listen"),
    ] {
        let line = outcome.stdout.lines().find(|line| line.starts_with(start));
        assert!(line.is_some_and(|line| line.contains(advice)), "{start}: {}", outcome.stdout);
    }
}

#[test]
fn results_that_cannot_be_written_are_an_error() {
    for (program, arguments) in [
        (program(), "devices"),
        (program(), "doctor"),
        (mnist(), "--dataset subset --mode single --print-config"),
    ] {
        let script = format!("exec {} {arguments} >/dev/full", program.display());
        let outcome = finish(command("sh".as_ref(), &["-c", &script]).spawn().expect("sh"));
        let reason = "error: cannot write to standard output: No space left on device";
        assert!(outcome.code == Some(1) && outcome.stderr.contains(reason), "{arguments}: {outcome:#?}");
    }
}

#[test]
fn two_doctors_measure_the_network_between_them() {
    let mut listen = command(&program(), &["doctor", "--listen", "127.0.0.1:0"]);
    let mut listening = Listening(listen.env("BURN_DDP_SECRET", "s").spawn().expect("built"));
    let mut lines = BufReader::new(listening.0.stdout.take().expect("a pipe")).lines();
    let port = {
        let line = lines.next().expect("a line").expect("text");
        line.rsplit_once(':').expect("a port").1.to_owned()
    };
    let peer = format!("127.0.0.1:{port}");
    let ask = |secret: &str| {
        let mut doctor = command(&program(), &["doctor", "--timeout", "5", "--peer", &peer]);
        finish(doctor.env("BURN_DDP_SECRET", secret).spawn().expect("built"))
    };
    let outcome = ask("s").succeeded();
    for words in ["ok    peer          127.0.0.1:", " MB/s", "ok    clock skew"] {
        assert!(outcome.stdout.contains(words), "should say `{words}`: {}", outcome.stdout);
    }
    let other_secret = ask("another");
    assert_eq!(other_secret.code, Some(1));
    assert!(other_secret.stdout.contains("secret"), "{}", other_secret.stdout);
    // An unauthenticated peer does not end it.
    ask("s").succeeded();
}
