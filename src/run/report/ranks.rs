//! Where each rank's training time went.

use super::{chart::colour, page::table, run::Run};
use std::collections::BTreeMap;

/// Seconds of one rank.
#[derive(Clone, Copy, Default)]
struct Time {
    all: f64,
    data: f64,
    gradients: f64,
}

impl Time {
    /// Its own work, and what it waited for.
    fn parts(self) -> [f64; 3] {
        [(self.all - self.data - self.gradients).max(0.0), self.gradients, self.data]
    }
}

/// What the parts are called.
const PARTS: [&str; 3] = ["own work", "waiting for gradients", "waiting for batches"];

/// A bar and a row for each rank; nothing if no one measured.
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
        "<h2>Where the ranks' time went</h2>\n<p>{}</p>\n<div class=\"legend\">{}</div>\n{}{}",
        note(run),
        legend.collect::<String>(),
        bars.collect::<String>(),
        table(&header, &ranks.iter().map(row).collect::<Vec<_>>())
    )
}

/// What the figures are, and are not.
fn note(run: &Run) -> &'static str {
    match (run.setting("world_size").as_str(), run.setting("device").as_str()) {
        ("1", _) => {
            "By the host's clock, in training steps. A world of one waits for no other rank's gradients."
        }
        (_, "cpu") => {
            "By each host's clock, in training steps. A rank waits for gradients from the end of its backward pass \
             until those of all ranks are averaged: for slower ranks, and for the communication that does not overlap \
             with backward. Communication that does overlap is part of its own work."
        }
        (..) => {
            "By each host's clock, in training steps. A GPU works behind its host: what the host waits for is not all \
             that the GPU waits for."
        }
    }
}
