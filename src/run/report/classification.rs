//! Classification results of a run: confusion matrix and worst misclassifications.

use super::{page::percent, run::Run};
use crate::run::tables::{MISTAKE_COLUMNS, Mistake};
use base64::{Engine, prelude::BASE64_STANDARD};

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
        let all: u64 = counts.iter().sum();
        let wrong = counts.iter().enumerate().filter(|(answer, _)| *answer != label);
        let most = wrong.map(|(_, count)| *count).max().unwrap_or(0);
        let cell = |(answer, count): (usize, &u64)| match (*count, answer == label) {
            (0, _) => "<td></td>".to_owned(),
            (count, right) => {
                // The most frequent wrong prediction is darkest, however rare it is.
                let (name, of) = if right { ("good", all) } else { ("bad", most.max(5)) };
                let shade = 0.1 + 0.5 * count as f64 / of.max(1) as f64;
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
             <b>{label} → {}</b><br><span>{}<br>image {}</span></figure>\n",
            wrong.answer,
            percent(wrong.answer_probability),
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
