//! `--trace`: one file with the spans of all ranks.

use crate::{
    common::Run,
    metrics::{forecast, forecaster},
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// A span of a rank: start and end in microseconds.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: f64,
    end: f64,
}

/// Spans by rank and name, in the order of their ends.
type Spans = BTreeMap<(u64, String), Vec<Span>>;

/// The spans in a file, and the names of processes and threads.
fn spans(path: &Path) -> (Spans, Vec<String>) {
    let text = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let events: Vec<Value> = serde_json::from_slice(&text).expect("a trace");
    let (mut spans, mut names) = (Spans::new(), Vec::new());
    for event in events {
        let rank = event["pid"].as_u64().expect("a rank");
        if event["ph"] == "M" {
            names.push(event["args"]["name"].as_str().expect("a name").to_owned());
            continue;
        }
        assert_eq!(event["ph"], "X", "{event}");
        let start = event["ts"].as_f64().expect("a start");
        let end = start + event["dur"].as_f64().expect("a duration");
        let name = event["name"].as_str().expect("a name").to_owned();
        spans.entry((rank, name)).or_default().push(Span { start, end });
    }
    (spans, names)
}

#[test]
fn a_trace_has_the_steps_waits_and_collectives_of_all_ranks() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("trace.json");
    let flags = format!("--nproc-per-node 2 --epochs 1 --workers 1 --trace {}", path.display());
    let run = forecast(&flags);
    let steps = run.losses().len();
    let (spans, names) = spans(&path);
    assert!(
        names.iter().any(|name| name == "rank 0") && names.iter().any(|name| name == "rank 1"),
        "{names:?}"
    );
    let of = |rank, name: &str| {
        let found = spans.get(&(rank, name.to_owned()));
        found.unwrap_or_else(|| panic!("no {name} of rank {rank} in {:?}", spans.keys()))
    };
    for rank in 0..2 {
        assert_eq!(of(rank, "step").len(), steps);
        for part in ["forward and backward", "optimizer"] {
            assert_eq!(of(rank, part).len(), steps);
            let within = |(step, part): (&Span, &Span)| step.start <= part.start && part.end <= step.end;
            assert!(of(rank, "step").iter().zip(of(rank, part)).all(within), "{part} of rank {rank}");
        }
        for name in ["wait for data", "wait for gradients", "build batch", "validation", "checkpoint"] {
            assert!(!of(rank, name).is_empty());
        }
    }
    // No rank leaves an all-reduce before every rank has entered it.
    assert_eq!(of(0, "all_reduce").len(), of(1, "all_reduce").len());
    assert!(of(0, "all_reduce").len() >= steps);
    let meet = |(a, b): (&Span, &Span)| a.start < b.end && b.start < a.end;
    assert!(of(0, "all_reduce").iter().zip(of(1, "all_reduce")).all(meet));
    // The file is not a setting of the run.
    assert!(!fs::read_to_string(run.path.join("config.json")).expect("settings").contains("trace.json"));
}

#[test]
fn each_rank_of_a_failed_run_writes_its_own_trace() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("trace.json");
    let flags = format!("--nproc-per-node 2 --lr 1e30 --trace {}", path.display());
    let outcome = forecaster(&Run::new(), &flags);
    let of_rank = |rank| -> PathBuf { folder.path().join(format!("trace.rank{rank}.json")) };
    for rank in [0, 1] {
        let line = format!("trace of rank {rank}: {}", of_rank(rank).display());
        assert!(outcome.stderr.contains(&line), "{line}: {outcome:?}");
        let (spans, _) = spans(&of_rank(rank));
        assert!(spans.contains_key(&(rank, "step".into())), "{:?}", spans.keys());
    }
    assert_eq!(outcome.code, Some(1));
}

#[test]
fn a_trace_that_cannot_be_written_is_refused_at_the_start() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("missing/trace.json");
    let (path, run) = (path.display().to_string(), Run::new());
    forecaster(&run, &format!("--trace {path}")).failed_with(&["--trace: cannot write ", &path]);
    assert!(!run.path.exists());
}
