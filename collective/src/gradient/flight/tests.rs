//! A gradient that arrives while the step is being finished.

use super::*;
use crate::{ProcessGroup, gradient::BucketSizes};
use burn::nn::LinearConfig;

#[test]
fn a_gradient_that_arrives_before_it_is_written_counts_once() {
    let layer = LinearConfig::new(2, 2).init(&Device::flex().autodiff());
    let plan = Arc::new(Plan::new(&layer, BucketSizes::default()));
    let [weight, bias] =
        [layer.weight.id, layer.bias.as_ref().unwrap().id].map(|id| plan.slot_of(id).unwrap());
    let buffers = vec![Vec::with_capacity(plan.length(0))];
    let (link, weights) =
        (Link { group: ProcessGroup::solo(), hook: None }, Weights { own: 1.0, carried: None });
    let flight =
        Flight::new(plan.clone(), link, Arc::default(), weights, buffers, vec![false; 2], usize::MAX);
    let all = |value: f32, count| TensorData::new(vec![value; count], [count]);

    // `finish` looks whether the gradient is there, another thread's backward brings it, and `finish`
    // writes what it has.
    assert!(!flight.has(weight));
    flight.arrived(weight, || Ok(Values::Brought(all(1.0, 4))));
    flight.write(weight, Some(all(1.0, 4)));
    assert!(!flight.has(bias));
    flight.write(bias, Some(all(2.0, 2)));

    let landing = flight.land(&mut vec![]).unwrap();
    assert_eq!(landing.buffers, [[2.0, 2.0, 1.0, 1.0, 1.0, 1.0]]);
    assert_eq!((landing.users, landing.again), (vec![1, 1], None));
}
