//! Communication hooks: built-in ones and a user's.

use super::{Net, device, flat, numbers, reduced, rows, tiny, with_reducer, worst};
use burn::module::{Module, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData};
use burn_ddp_collective::{
    Error, ProcessGroup, Result,
    gradient::{Bucket, CommHook, HalfPrecision, PowerSgd, ReducerOptions, TopK},
};
use std::sync::Arc;

fn choose(hook: impl CommHook + 'static) -> ReducerOptions {
    ReducerOptions { hook: Some(Arc::new(hook)), ..ReducerOptions::default() }
}

/// One matrix, two vectors.
#[derive(Module, Debug)]
struct Matrix {
    matrix: Param<Tensor<2>>,
    vector: Param<Tensor<1>>,
    small: Param<Tensor<2>>,
}

impl Matrix {
    fn new(device: &Device) -> Self {
        Matrix {
            matrix: Param::from_tensor(Tensor::zeros([20, 30], device)),
            vector: Param::from_tensor(Tensor::zeros([7], device)),
            small: Param::from_tensor(Tensor::zeros([2, 2], device)),
        }
    }

    /// Gradients with these values.
    fn grads(&self, matrix: Vec<f32>, vector: Vec<f32>) -> GradientsParams {
        let device = self.matrix.val().device();
        let matrix = Tensor::<2>::from_data(TensorData::new(matrix, [20, 30]), &device);
        let vector = Tensor::<1>::from_data(TensorData::new(vector, [7]), &device);
        let loss =
            (self.matrix.val() * matrix).sum() + (self.vector.val() * vector).sum() + self.small.val().sum();
        GradientsParams::from_grads(loss.backward(), self)
    }
}

/// Sums over `steps` steps of the reduced gradients and of the input gradients.
///
/// Every step has the same gradients, of which each rank has a part.
fn summed(
    size: usize,
    steps: usize,
    hook: impl Fn() -> ReducerOptions + Sync,
    matrix: impl Fn(usize) -> Vec<f32> + Sync,
) -> (Vec<f32>, Vec<f32>) {
    let results = with_reducer(size, Matrix::new, hook, |net, mut reducer, group| {
        let mut sum = vec![0.0; 611];
        for _ in 0..steps {
            let grads =
                reduced(&mut reducer, &net, [1, size], |net| net.grads(matrix(group.rank()), numbers(7)));
            sum.iter_mut().zip(flat(&grads, &net)).for_each(|(to, from)| *to += from);
        }
        assert_eq!(reducer.fallback(), None);
        sum
    });
    assert!(results.iter().all(|sum| *sum == results[0]), "the same bits on every rank");
    let mut wanted = vec![0.0; 600];
    for rank in 0..size {
        wanted.iter_mut().zip(matrix(rank)).for_each(|(to, from)| *to += from / size as f32);
    }
    wanted.extend(numbers(7));
    wanted.extend([1.0; 4]);
    wanted.iter_mut().for_each(|x| *x *= steps as f32);
    (results[0].clone(), wanted)
}

/// Full-rank values of one rank.
fn full(rank: usize) -> Vec<f32> {
    (0..600).map(|i| ((i * i + 7 * rank) as f32 * 0.71).sin()).collect()
}

/// Outer product of a column and a row, with the same row on every rank.
fn outer(rank: usize) -> Vec<f32> {
    (0..600).map(|i| ((i / 30) as f32 + rank as f32) * ((i % 30) as f32 * 0.3).cos()).collect()
}

#[test]
fn half_precision_hooks_are_accurate_to_their_precision() {
    for (half, digits) in [(HalfPrecision::Bf16, 1.0 / 128.0), (HalfPrecision::Fp16, 1.0 / 1024.0)] {
        let (ours, wanted) = summed(3, 1, || choose(half), full);
        let difference = worst(&ours, &wanted);
        assert!(difference > 0.0 && difference < digits, "{half:?}: {difference}");
    }
}

#[test]
fn top_k_sends_every_value_eventually() {
    let everything = || choose(TopK::new(1.0).expect("a ratio"));
    let (ours, wanted) = summed(3, 1, everything, full);
    assert!(worst(&ours, &wanted) < 1e-6);
    // One step sends a tenth of the values. The rest is sent later, so that the difference between the sums does not
    // grow with the number of steps.
    let tenth = || choose(TopK::new(0.1).expect("a ratio"));
    let after = |steps| {
        let (ours, wanted) = summed(2, steps, tenth, full);
        worst(&ours, &wanted)
    };
    let (one, many) = (after(1), after(60));
    assert!(one > 0.1, "{one}");
    assert!(many < 30.0 * one / 2.0, "{one} after 1 step, {many} after 60");
    // Without feedback the smallest values would never be sent.
    let (ours, wanted) = summed(2, 200, tenth, full);
    let missing = ours.iter().zip(&wanted).filter(|(a, b)| a.abs() < 0.5 * b.abs()).count();
    assert!(missing < 30, "{missing} of 611 values were not sent");
}

#[test]
fn power_sgd_is_exact_where_the_gradient_has_low_rank() {
    for rank in [1, 4] {
        let (ours, wanted) = summed(3, 1, || choose(PowerSgd::new(rank).expect("a rank")), outer);
        let largest = wanted.iter().fold(0.0f32, |a, b| a.max(b.abs()));
        assert!(worst(&ours, &wanted) < 1e-5 * largest, "rank {rank}: {}", worst(&ours, &wanted));
    }
}

#[test]
fn power_sgd_has_error_feedback_and_does_not_compress_vectors() {
    let low = || choose(PowerSgd::new(2).expect("a rank"));
    let after = |steps| {
        let (ours, wanted) = summed(2, steps, low, full);
        assert!(worst(&ours[600..], &wanted[600..]) < 1e-4, "vectors are exact");
        worst(&ours, &wanted) / steps as f32
    };
    let (one, many) = (after(1), after(100));
    assert!(one > 0.1, "{one}");
    assert!(many < 0.2 * one, "{one} in the first step, {many} a step in 100");
    let warm = || choose(PowerSgd::new(2).expect("a rank").with_warm_up(3));
    let (ours, wanted) = summed(2, 3, warm, full);
    assert!(worst(&ours, &wanted) < 1e-5);
}

/// Doubles the result, in two halves.
#[derive(Debug)]
struct Mine;

impl CommHook for Mine {
    fn name(&self) -> &str {
        "mine"
    }

    fn reduce(&self, bucket: &mut Bucket<'_>, group: &ProcessGroup) -> Result<()> {
        assert_eq!(bucket.count(), 6);
        let parameters: Vec<_> = bucket.parameters().collect();
        assert_eq!(parameters.len(), 1);
        assert_eq!(parameters[0].range, 0..parameters[0].shape.iter().product());
        let paths =
            ["unused.bias", "unused.weight", "last.bias", "last.weight", "first.bias", "first.weight"];
        assert_eq!(parameters[0].path, paths[bucket.index()]);
        let all = group.all_gather(bucket.values())?;
        bucket.values_mut().fill(0.0);
        for theirs in all {
            bucket.values_mut().iter_mut().zip(theirs).for_each(|(to, from)| *to += 2.0 * from);
        }
        Ok(())
    }
}

#[test]
fn a_users_hook_sees_each_parameter_and_may_call_any_collective() {
    let choose = || ReducerOptions { hook: Some(Arc::new(Mine)), ..tiny(true) };
    with_reducer(2, Net::new, choose, |net, mut reducer, _| {
        let wanted: Vec<f32> =
            flat(&net.grads(rows(3, 4, &device())), &net).into_iter().map(|g| 2.0 * g).collect();
        let mut totals = vec![1.0, 2.0];
        let step = reducer.step(3, 6);
        let grads = step.watch(&net).grads(rows(3, 4, &device()));
        let grads = step.finish(grads, &net, &mut totals).expect("finish");
        assert!(worst(&flat(&grads, &net), &wanted) < 1e-6);
        // Totals do not go through hooks.
        assert_eq!(totals, [2.0, 4.0]);
    });
}

/// Fails on one rank.
#[derive(Debug)]
struct Broken(usize);

impl CommHook for Broken {
    fn name(&self) -> &str {
        "broken"
    }

    fn reduce(&self, bucket: &mut Bucket<'_>, group: &ProcessGroup) -> Result<()> {
        if group.rank() == 1 && bucket.index() == self.0 {
            return Err(Error::Invalid("no more paper".into()));
        }
        group.all_reduce(bucket.values_mut(), burn_ddp_collective::ReduceOp::Sum)
    }
}

#[test]
fn an_error_in_a_hook_fails_the_step_on_every_rank() {
    for bucket in [0, 3, 5] {
        let choose = || ReducerOptions { hook: Some(Arc::new(Broken(bucket))), ..tiny(true) };
        let errors = with_reducer(3, Net::new, choose, |net, mut reducer, _| {
            let step = reducer.step(3, 9);
            let grads = step.watch(&net).grads(rows(3, 4, &device()));
            step.finish(grads, &net, &mut vec![]).expect_err("a broken hook").to_string()
        });
        assert!(errors.iter().all(|error| error.contains("no more paper")), "{errors:?}");
    }
}

#[test]
fn hooks_work_on_a_model_without_parameters() {
    for hook in
        [Arc::new(HalfPrecision::Bf16) as Arc<dyn CommHook>, Arc::new(PowerSgd::new(1).expect("a rank"))]
    {
        let choose = || ReducerOptions { hook: Some(hook.clone()), ..ReducerOptions::default() };
        let make = |device: &_| Net::new(device).freeze();
        with_reducer(2, make, choose, |net, mut reducer, _| {
            let mut totals = vec![1.0];
            let step = reducer.step(1, 2);
            step.finish(GradientsParams::new(), &net, &mut totals).expect("finish");
            assert_eq!(totals, [2.0]);
        });
    }
}
