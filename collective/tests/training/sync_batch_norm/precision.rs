//! Values for which E[x²] − E[x]² is inaccurate.

use super::batches::{Batch, Case, Outcome, numbers};
use crate::common::Kind;
use burn::tensor::{DType, bf16, f16};

/// One channel's step in f64, by definition. The running statistics are those of the batch.
fn exact(case: &Case) -> Outcome {
    let Batch { x, dy } = &case.steps[0];
    let (n, gamma, beta) = (x.len() as f64, case.gamma[0], case.beta[0]);
    let mean = x.iter().sum::<f64>() / n;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    let inv_std = (variance + case.eps).sqrt().recip();
    let normalised: Vec<f64> = x.iter().map(|x| (x - mean) * inv_std).collect();
    let dbeta: f64 = dy.iter().sum();
    let dgamma: f64 = dy.iter().zip(&normalised).map(|(g, x)| g * x).sum();
    let dx = |(g, x): (&f64, &f64)| gamma * inv_std * (g - dbeta / n - x * dgamma / n);
    Outcome {
        y: normalised.iter().map(|x| gamma * x + beta).collect(),
        dx: dy.iter().zip(&normalised).map(dx).collect(),
        dgamma: vec![dgamma],
        dbeta: vec![dbeta],
        running_mean: vec![mean],
        running_var: vec![variance],
    }
}

/// One channel of values that `dtype` can represent. The running statistics become those of the batch.
fn one_channel(shards: &[usize], dtype: DType, x: impl Fn(usize, f64) -> f64) -> Case {
    let mut case = Case::random(1, shards, &[1], 1);
    let noise = numbers(7, case.shape[0]);
    case.steps[0].x = noise.iter().enumerate().map(|(i, noise)| x(i, *noise)).collect();
    let Batch { x, dy } = &mut case.steps[0];
    for value in [x, dy, &mut case.gamma, &mut case.beta].into_iter().flatten() {
        *value = match dtype {
            DType::F16 => f16::from_f64(*value).to_f64(),
            DType::BF16 => bf16::from_f64(*value).to_f64(),
            _ => f64::from(*value as f32),
        };
    }
    Case { dtype, momentum: 1.0, eps: 1e-9, ..case }
}

#[test]
fn a_deviation_of_1e_2_around_1e4_is_accurate() {
    // The second rank's values are a little higher.
    let x = |i: usize, noise: f64| f64::from((1e4 + 0.017 * noise + if i < 300 { 0.0 } else { 0.01 }) as f32);
    let case = one_channel(&[300, 724, 0], DType::F32, x);
    let wanted = exact(&case);
    assert!((0.5e-4..5e-4).contains(&wanted.running_var[0]), "{wanted:?}");

    let n = case.shape[0] as f32;
    let (sum, squares) = (case.steps[0].x.iter())
        .fold((0f32, 0f32), |(sum, squares), x| (sum + *x as f32, squares + (*x as f32).powi(2)));
    let naive = squares / n - (sum / n).powi(2);
    assert!((f64::from(naive) / wanted.running_var[0] - 1.0).abs() > 1.0, "naively {naive} is no failure");

    let ours = case.sharded(Kind::Thread).remove(0);
    ours.assert_close(&wanted, 1e-3, 1e-5, "far from zero");
}

#[test]
fn one_outlier_does_not_reduce_accuracy() {
    let x = |i: usize, noise: f64| if i.is_multiple_of(200) { 900.0 } else { noise };
    let case = one_channel(&[200, 400], DType::F32, x);
    case.sharded(Kind::Thread).remove(0).assert_close(&exact(&case), 1e-3, 1e-5, "an outlier");
}

#[test]
fn half_types_are_computed_in_f32() {
    // Squares and sums overflow f16, and bf16 would lose the deviation.
    for (dtype, tolerance) in [(DType::F16, 2e-3), (DType::BF16, 2e-2)] {
        for shards in [&[500, 300][..], &[800]] {
            let case = one_channel(shards, dtype, |_, noise| 1000.0 + 200.0 * noise);
            let what = format!("{dtype:?} over {shards:?}");
            case.sharded(Kind::Thread).remove(0).assert_close(&exact(&case), 1e-3, tolerance, &what);
        }
    }
}
