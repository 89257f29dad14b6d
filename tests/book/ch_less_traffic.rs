//! The claims of "Less traffic, fewer bits".

use crate::common::{assert_close, run_example};

/// The losses of each epoch.
fn losses(flags: &str) -> Vec<f64> {
    let flags = format!("--device cpu --nproc-per-node 2 {flags}");
    let outcome = run_example("less_traffic", &flags).succeeded();
    let lines = outcome.stdout.lines().filter_map(|line| line.split("train loss ").nth(1));
    let losses: Vec<f64> = lines.map(|loss| loss.parse().expect("a loss")).collect();
    assert_eq!(losses.len(), 10, "{outcome:#?}");
    losses
}

#[test]
fn accumulated_batches_equal_a_larger_one() {
    let whole = losses("--batch-size 48");
    assert_close("4 of 12", &losses("--batch-size 12 --grad-accum-steps 4"), &whole, 2e-6);
    assert_close("2 of 24", &losses("--batch-size 24 --grad-accum-steps 2"), &whole, 2e-6);
}

#[test]
fn one_byte_per_gradient_needs_error_feedback() {
    let [exact, bf16, byte, without] =
        ["none", "bf16", "byte", "byte-without-feedback"].map(|hook| losses(&format!("--hook {hook}"))[9]);
    assert!(bf16 < 1.1 * exact, "{bf16} and {exact}");
    assert!(byte < 2.0 * exact, "{byte} and {exact}");
    assert!(without > 10.0 * exact, "{without} and {exact}");
}
