//! Sections of a run's report: time per rank, confusion matrix and worst misclassifications.

use super::{chart::colour, page::table, run::Run};
use crate::run::tables::{MISTAKE_COLUMNS, Mistake, RankRow};
use base64::{Engine, prelude::BASE64_STANDARD};
use std::collections::BTreeMap;

/// Splits the training time of a rank as in [`PARTS`].
fn parts(time: &RankRow) -> [f64; 3] {
    let RankRow { seconds, data_wait_seconds: data, gradient_wait_seconds: gradients, .. } = *time;
    [(seconds - data - gradients).max(0.0), gradients, data]
}

/// Names of the parts.
const PARTS: [&str; 3] = ["compute", "waiting for gradients", "waiting for batches"];

/// Renders a bar and a table row per rank; empty if no times were recorded.
pub fn ranks(run: &Run) -> String {
    // The sums over all epochs.
    let mut ranks: BTreeMap<usize, RankRow> = BTreeMap::new();
    for row in &run.ranks {
        let time = ranks.entry(row.rank).or_default();
        time.seconds += row.seconds;
        time.data_wait_seconds += row.data_wait_seconds;
        time.gradient_wait_seconds += row.gradient_wait_seconds;
    }
    let Some(longest) = ranks.values().map(|time| time.seconds).reduce(f64::max).filter(|time| *time > 0.0)
    else {
        return String::new();
    };
    let legend = PARTS
        .iter()
        .enumerate()
        .map(|(part, name)| format!("<span><i style=\"background:{}\"></i>{name}</span>", colour(part)));
    let bar = |time: &RankRow| {
        let part = |(part, seconds): (usize, &f64)| {
            let width = 100.0 * seconds / longest;
            format!("<i style=\"width:{width:.2}%;background:{}\"></i>", colour(part))
        };
        parts(time).iter().enumerate().map(part).collect::<String>()
    };
    let bars = ranks.iter().map(|(rank, time)| {
        format!("<div class=\"rank\"><span>rank {rank}</span><div class=\"bar\">{}</div></div>\n", bar(time))
    });
    let header: Vec<String> = ["", "training"].into_iter().chain(PARTS).map(String::from).collect();
    let row = |(rank, time): (&usize, &RankRow)| {
        let share =
            |seconds: f64| format!("{seconds:.2} s, {:.1} %", 100.0 * seconds / time.seconds.max(1e-9));
        let mut cells = vec![format!("rank {rank}"), format!("{:.2} s", time.seconds)];
        cells.extend(parts(time).map(share));
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

/// Side of an image on the page in CSS pixels, with its frame.
const SQUARE: usize = 90;
/// Side of an image without its frame.
const SHOWN: usize = 84;

/// Renders the confusion matrix; empty before the first evaluation.
pub fn confusion(run: &Run) -> String {
    if run.confusion.is_empty() {
        return String::new();
    }
    let header: String = (0..run.confusion.len()).map(|answer| format!("<th>{answer}</th>")).collect();
    let row = |(label, counts): (usize, &Vec<u64>)| {
        let all: f64 = counts.iter().map(|count| *count as f64).sum();
        let wrong = counts.iter().enumerate().filter(|(answer, _)| *answer != label);
        let most = wrong.map(|(_, count)| *count).max().unwrap_or(0);
        let cell = |(answer, count): (usize, &u64)| match (*count, answer == label) {
            (0, _) => "<td></td>".to_owned(),
            (count, right) => {
                // The most frequent wrong prediction is darkest, however rare it is.
                let (name, of) = if right { ("good", all) } else { ("bad", most.max(5) as f64) };
                let shade = 0.1 + 0.5 * count as f64 / of;
                format!("<td style=\"background:rgba(var(--{name}),{shade:.2})\">{count}</td>")
            }
        };
        format!("<tr><th>{label}</th>{}</tr>\n", counts.iter().enumerate().map(cell).collect::<String>())
    };
    let rows: String = run.confusion.iter().enumerate().map(row).collect();
    format!(
        "<h2>Confusion matrix</h2>\n<p>Test images by label (rows) and prediction (columns), after the last \
         evaluation.</p>\n<table class=\"confusion\"><tr><th></th>{header}</tr>\n{rows}</table>\n"
    )
}

/// Renders the worst misclassified images; empty if there are none.
pub fn worst(run: &Run) -> String {
    let Some(picture) = run.picture.as_ref().filter(|_| !run.worst.is_empty()) else { return String::new() };
    let (width, frame) = (MISTAKE_COLUMNS * SQUARE, (SQUARE - SHOWN) / 2);
    let ground = format!(
        "<style>.digits i {{ background-size: {width}px auto; background-image: \
         url(data:image/png;base64,{}); }}</style>\n",
        BASE64_STANDARD.encode(picture)
    );
    let figure = |(place, wrong): (usize, &Mistake)| {
        let (left, top) =
            (place % MISTAKE_COLUMNS * SQUARE + frame, place / MISTAKE_COLUMNS * SQUARE + frame);
        format!(
            "<figure><i style=\"background-position:-{left}px -{top}px\" role=\"img\" aria-label=\"a {label}\"></i>\
             <b>{label} → {}</b><br><span>{:.2} %<br>image {}</span></figure>\n",
            wrong.answer,
            100.0 * wrong.answer_probability,
            wrong.test_image,
            label = wrong.label,
        )
    };
    let figures: String = run.worst.iter().enumerate().map(figure).collect();
    format!(
        "<h2>Worst misclassified images</h2>\n<p>Label → prediction and its probability: the test images whose label \
         has the lowest predicted probability.</p>\n{ground}<div class=\"digits\">{figures}</div>\n"
    )
}
