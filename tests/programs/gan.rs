//! The example `gan`: two modules and two optimizers, with a checkpoint.

use crate::common::{Outcome, run_example};
use std::{fs, path::Path};

/// Trains until the last of `epochs`, on two ranks.
fn gan(state: &Path, epochs: usize) -> Outcome {
    run_example("gan", &format!("--device cpu --threads 1 --epochs {epochs} --state {}", state.display()))
}

/// The last four lines of an output: two epochs and the result.
fn end(outcome: Outcome) -> Vec<String> {
    let lines: Vec<String> = outcome.succeeded().stdout.lines().map(String::from).collect();
    lines[lines.len().saturating_sub(4)..].into()
}

#[test]
fn a_gan_continues_with_the_same_bits() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let [whole, parts] = ["whole", "parts"].map(|name| folder.path().join(name).join("gan.ckpt"));
    let whole = end(gan(&whole, 4));
    assert!(whole[0].starts_with("epoch 3  discriminator loss "), "{whole:?}");
    gan(&parts, 2).succeeded();
    let resumed = gan(&parts, 4);
    assert!(resumed.stdout.starts_with("resuming after epoch 2\n"), "{resumed:?}");
    assert_eq!(end(resumed), whole);
    // A damaged checkpoint is an error, not a new start.
    let bytes = fs::read(&parts).expect("a checkpoint");
    fs::write(&parts, &bytes[..bytes.len() - 1]).expect("written");
    let damaged = gan(&parts, 5);
    damaged.failed_with(&["gan.ckpt is damaged", "truncated"]);
    assert!(damaged.stderr.starts_with(&format!("error: rank 0: {}", parts.display())), "{damaged:#?}");
}
