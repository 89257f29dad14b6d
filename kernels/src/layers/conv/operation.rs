//! Convolution and its gradients.

use super::{super::operation::Operation, Epilogue, Settings, Shape};
use crate::conv::{self, Filters, Gradient, Pooled, Whole};
use crate::host_tensor::{Host, tensor, values};
use std::{borrow::Cow, sync::Arc};

/// The part of the output that backward needs.
#[derive(Clone, Debug)]
pub enum Passed {
    /// Nothing: every output passes its gradient on.
    All,
    /// The output of a ReLU.
    Positive(Host),
    /// Index of each pooled value within its window.
    Taken(Arc<Vec<u8>>),
}

/// Images and weights of the convolution with stride 1.
fn folded<'a>(shape: &Shape, x: &'a Host, weight: &'a Host) -> [Cow<'a, [f32]>; 2] {
    let (x, weight) = (values(x), values(weight));
    match shape {
        Shape::Plain(_) => [Cow::Borrowed(x), Cow::Borrowed(weight)],
        Shape::Strided(strided) => [Cow::Owned(strided.fold(x)), Cow::Owned(strided.fold_weights(weight))],
    }
}

impl Operation<3, 2> for Settings {
    type Saved = Passed;

    const READS: [usize; 2] = [0, 1];

    fn forward(&self, [x, weight, bias]: [Host; 3]) -> (Host, Passed) {
        let (geometry, [x, weight]) = (self.shape.geometry(), folded(&self.shape, &x, &weight));
        let taps = geometry.taps();
        let weight = |filter, tap| weight[filter * taps + tap];
        let filters = |relu| Filters { weight: &weight, bias: Some(values(&bias)), relu };
        let plain = |relu| tensor(conv::forward(geometry, &x, filters(relu)), geometry.outputs());
        match self.epilogue {
            Epilogue::Nothing => (plain(false), Passed::All),
            Epilogue::Relu => {
                let output = plain(true);
                (output.clone(), Passed::Positive(output))
            }
            Epilogue::Pooled => {
                let (output, taken) = conv::forward_pooled(geometry, &x, filters(false));
                let ([batch, filters, ..], [height, width]) = (geometry.outputs(), geometry.pooled());
                (tensor(output, [batch, filters, height, width]), Passed::Taken(Arc::new(taken)))
            }
        }
    }

    fn backward(
        &self,
        [x, weight]: [Host; 2],
        passed: Passed,
        grad: Host,
        wanted: [bool; 3],
    ) -> [Option<Host>; 3] {
        let shape = &self.shape;
        let (geometry, [x, weight]) = (shape.geometry(), folded(shape, &x, &weight));
        let grad = values(&grad);
        let gradient = match &passed {
            Passed::All => Gradient::Whole(Whole { values: grad, output: None }),
            Passed::Positive(output) => Gradient::Whole(Whole { values: grad, output: Some(values(output)) }),
            Passed::Taken(taken) => Gradient::Pooled(Pooled { values: grad, taken }),
        };
        let (mut for_weight, mut for_bias) = (None, None);
        if wanted[1] || wanted[2] {
            let (weights, biases) = conv::gradients(geometry, &x, gradient);
            for_weight = Some(match shape {
                Shape::Plain(_) => tensor(weights, geometry.weights()),
                Shape::Strided(strided) => tensor(strided.unfold_weights(&weights), strided.weights()),
            });
            for_bias = Some(tensor(biases, [geometry.weights()[0]]));
        }
        let for_x = wanted[0].then(|| {
            let values = conv::input_gradient(geometry, &weight, gradient);
            match shape {
                Shape::Plain(_) => tensor(values, geometry.inputs()),
                Shape::Strided(strided) => tensor(strided.unfold(&values), strided.inputs()),
            }
        });
        [for_x, for_weight, for_bias]
    }
}
