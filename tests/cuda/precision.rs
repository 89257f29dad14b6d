//! Gradients of a 16-bit training step on an emulated GPU.

use crate::{
    common::{Run, events::histograms, example},
    stand_in::Machine,
};
use std::{fs, sync::OnceLock};

/// Norms of the gradients of the first step with 8,192 characters, by parameter.
fn norms(machine: &Machine, precision: &str) -> Vec<(String, f64)> {
    let folder = tempfile::tempdir().expect("temporary folder");
    let (text, run) = (folder.path().join("text.txt"), folder.path().join("run"));
    // Mostly one character, so that the sum of its vector has more similar terms than 16 bits can add: with such sums, the
    // norm of wte.weight is 0.27 (bf16) and 0.91 (f16) times that of f32.
    let characters = (0..11_000).map(|i| char::from(b'a' + if i % 4 == 0 { (i * i % 7) as u8 } else { 0 }));
    fs::write(&text, characters.collect::<String>()).expect("written");
    let flags = format!(
        "--device cuda --mode single --progress plain --text {} --run-dir {} --batch-size 128 --block-size 64
         --layers 1 --width 8 --heads 2 --max-steps 1 --length 0 --histograms=1 --precision {precision}",
        text.display(),
        run.display(),
    );
    machine.start(&example("char_gpt"), &flags).succeeded();
    let squares = histograms(&Run::at(run), 5);
    let gradients =
        squares.iter().filter_map(|(tag, points)| Some((tag.strip_prefix("gradients/")?, points)));
    gradients.map(|(name, points)| (name.to_owned(), points[0].1.sqrt())).collect()
}

/// Compares the norms with those in f32.
fn follows_f32(precision: &str) {
    static EXACT: OnceLock<Vec<(String, f64)>> = OnceLock::new();
    let machine = Machine::new(1);
    let exact = EXACT.get_or_init(|| norms(&machine, "f32"));
    let norms = norms(&machine, precision);
    assert!(!exact.is_empty() && norms.len() == exact.len(), "{precision}: {norms:?}");
    for ((name, norm), (_, exact)) in norms.into_iter().zip(exact) {
        let ratio = norm / exact;
        println!("{precision} {name}: {ratio:.4}");
        // The other gradients are sums of 8,192 terms, too, but some are near 0.
        let tolerance = if name.ends_with("e.weight") { 0.01 } else { 0.1 };
        assert!((ratio - 1.0).abs() < tolerance, "{precision} {name}: {ratio}");
    }
}

#[test]
fn the_gradient_of_an_embedding_in_bf16_is_that_of_f32() {
    follows_f32("bf16");
}

#[test]
fn the_gradient_of_an_embedding_in_f16_is_that_of_f32() {
    follows_f32("f16");
}
