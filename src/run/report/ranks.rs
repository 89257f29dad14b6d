//! Breakdown of the training time by rank.

use super::{chart::colour, page::table, run::Run};
use std::collections::BTreeMap;

/// Training time of one rank in seconds.
#[derive(Clone, Copy, Default)]
struct Time {
    all: f64,
    data: f64,
    gradients: f64,
}

impl Time {
    /// Splits the time as in [`PARTS`].
    fn parts(self) -> [f64; 3] {
        [(self.all - self.data - self.gradients).max(0.0), self.gradients, self.data]
    }
}

/// Names of the parts.
const PARTS: [&str; 3] = ["compute", "waiting for gradients", "waiting for batches"];

/// Renders a bar and a table row per rank; empty if no times were recorded.
pub fn section(run: &Run) -> String {
    let mut ranks: BTreeMap<usize, Time> = BTreeMap::new();
    for row in &run.ranks {
        let time = ranks.entry(row.rank).or_default();
        time.all += row.seconds;
        time.data += row.data_wait_seconds;
        time.gradients += row.gradient_wait_seconds;
    }
    let Some(longest) = ranks.values().map(|time| time.all).reduce(f64::max).filter(|time| *time > 0.0)
    else {
        return String::new();
    };
    let legend = PARTS
        .iter()
        .enumerate()
        .map(|(part, name)| format!("<span><i style=\"background:{}\"></i>{name}</span>", colour(part)));
    let bar = |time: &Time| {
        let part = |(part, seconds): (usize, &f64)| {
            let width = 100.0 * seconds / longest;
            format!("<i style=\"width:{width:.2}%;background:{}\"></i>", colour(part))
        };
        time.parts().iter().enumerate().map(part).collect::<String>()
    };
    let bars = ranks.iter().map(|(rank, time)| {
        format!("<div class=\"rank\"><span>rank {rank}</span><div class=\"bar\">{}</div></div>\n", bar(time))
    });
    let header: Vec<String> = ["", "training"].into_iter().chain(PARTS).map(String::from).collect();
    let row = |(rank, time): (&usize, &Time)| {
        let share = |seconds: f64| format!("{seconds:.2} s, {:.1} %", 100.0 * seconds / time.all.max(1e-9));
        let mut cells = vec![format!("rank {rank}"), format!("{:.2} s", time.all)];
        cells.extend(time.parts().map(share));
        cells
    };
    format!(
        "<h2>Time per rank</h2>\n<p>{}</p>\n<div class=\"legend\">{}</div>\n{}{}",
        note(run),
        legend.collect::<String>(),
        bars.collect::<String>(),
        table(&header, &ranks.iter().map(row).collect::<Vec<_>>())
    )
}

/// Explains how the times were measured.
fn note(run: &Run) -> &'static str {
    match (run.setting("world_size").as_str(), run.setting("device").as_str()) {
        ("1", _) => "Host time of training steps. A single rank does not wait for gradients of other ranks.",
        (_, "cpu") => {
            "Host time of training steps. A rank waits for gradients from the end of its backward pass until the \
             gradients of all ranks are averaged: for slower ranks, and for communication that does not overlap with \
             backward. Communication that overlaps is part of compute."
        }
        (..) => {
            "Host time of training steps. A GPU executes asynchronously: the host's waiting time does not include \
             all of the GPU's."
        }
    }
}
