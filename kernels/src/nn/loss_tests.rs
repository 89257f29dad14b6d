//! Losses of every value, compared with Burn's.

use super::{
    loss::*,
    tests::{compare, device, random, same_settings},
};
use crate::tests::read;
use burn::nn::loss as burns;
use burn::tensor::{Int, Tensor};

/// Number of values in a loss, for several parts of the work.
const TERMS: usize = 12_000;

/// As many copies of a loss as it has terms, so that their gradients are not small.
fn copies(loss: Tensor<1>) -> Tensor<1> {
    loss.expand([TERMS])
}

#[test]
fn losses_of_differences_equal_those_of_burn() {
    let (x, targets) = (random([TERMS / 10, 10]), random([TERMS / 10, 10]) * 2.0);
    /// Compares gradients of predictions and of targets.
    macro_rules! compare_losses {
        ($both:expr, $forward:ident) => {
            for (reduction, divisor) in
                [(Reduction::Mean, 1.0), (Reduction::Auto, 1.0), (Reduction::Sum, TERMS as f32)]
            {
                macro_rules! forward {
                    ($m:ident, $x:expr, $y:expr) => {
                        copies($m.$forward($x, $y, reduction.clone()) / divisor)
                    };
                }
                let y = || targets.clone();
                compare($both, x.clone(), |m, x| forward!(m, x, y()), |m, x| forward!(m, x, y()));
                let x = || x.clone();
                compare($both, y(), |m, y| forward!(m, x(), y), |m, y| forward!(m, x(), y));
            }
        };
    }
    compare_losses!((MseLoss::new(), burns::MseLoss::new()), forward);
    let settings = (HuberLossConfig::new(0.8), burns::HuberLossConfig::new(0.8));
    same_settings(&settings.0, &settings.1);
    compare_losses!((settings.0.init(), settings.1.init()), forward);
    let settings =
        (SmoothL1LossConfig::new().with_beta(0.5), burns::SmoothL1LossConfig::new().with_beta(0.5));
    same_settings(&settings.0, &settings.1);
    compare_losses!((settings.0.init(), settings.1.init()), forward_with_reduction);
    for p in [1.0, 2.0, 3.0] {
        compare_losses!((LpLossConfig::new(p).init(), burns::LpLossConfig::new(p).init()), forward);
    }
    assert_eq!([LpLossConfig::l1().p, LpLossConfig::l2().p], [1.0, 2.0]);
}

#[test]
fn losses_without_a_reduction_are_those_of_burn() {
    let (x, targets) = (random([5, 7]), random([5, 7]));
    let ours = MseLoss::new().forward_no_reduction(x.clone(), targets.clone());
    assert_eq!(read(ours), read((x.clone() - targets.clone()).square()));
    let huber = HuberLossConfig::new(0.5).init();
    let burn = burns::HuberLossConfig::new(0.5).init();
    let ours = huber.forward_no_reduction(x.clone(), targets.clone());
    assert_eq!(read(ours), read(burn.forward_no_reduction(x, targets)));
}

#[test]
fn binary_cross_entropy_equals_that_of_burn() {
    let targets = Tensor::<1, Int>::arange(0..TERMS as i64, &device()) * 7 % 3 % 2;
    let labels = targets.clone().reshape([TERMS / 10, 10]);
    for (smoothing, weighted) in [(None, false), (Some(0.1), false), (None, true)] {
        for logits in [false, true] {
            let weights = |classes: usize| weighted.then(|| (0..classes).map(|i| 0.5 + i as f32).collect());
            let ours = BinaryCrossEntropyLossConfig::new().with_logits(logits).with_smoothing(smoothing);
            let burn = burns::BinaryCrossEntropyLossConfig::new();
            let burn = burn.with_logits(logits).with_smoothing(smoothing);
            same_settings(&ours, &burn);
            let both = |classes| {
                let ours = ours.clone().with_weights(weights(classes)).init(&device());
                (ours, burn.clone().with_weights(weights(classes)).init(&device()))
            };
            // Not so large that a probability is 1, for which the gradients of Burn's operations are NaN.
            let x = (random([TERMS]) * 4.0).clamp(-14.0, 14.0);
            let x = if logits { x } else { burn::tensor::activation::sigmoid(x) };
            let many = x.clone().reshape([TERMS / 10, 10]);
            compare(
                both(10),
                many,
                |m, x| copies(m.forward(x, labels.clone())),
                |m, x| copies(m.forward(x, labels.clone())),
            );
            compare(
                both(2),
                x,
                |m, x| copies(m.forward(x, targets.clone())),
                |m, x| copies(m.forward(x, targets.clone())),
            );
        }
    }
}

#[test]
fn binary_cross_entropy_of_certain_probabilities_is_finite() {
    let loss = BinaryCrossEntropyLossConfig::new().init(&device());
    let x = Tensor::<1>::from_floats([0.0, 1.0, 1.0, 0.0, 1e-40], &device()).require_grad();
    let targets = Tensor::<1, Int>::from_ints([0, 1, 0, 1, 1], &device());
    let mean = loss.forward(x.clone(), targets);
    let gradients = mean.clone().backward();
    let expected = (100.0 + 100.0 + 92.1034) / 5.0;
    assert!((read(mean)[0] - expected).abs() < 1e-4);
    assert_eq!(x.grad(&gradients).map(read), Some(vec![0.2, -0.2, 0.0, 0.0, 0.0]));
}
