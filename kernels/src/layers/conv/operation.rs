//! Convolution and its gradients.

use super::super::operation::Operation;
use crate::conv::{self, Depthwise, Gradient, Pooled, Shape, Whole};
use crate::host_tensor::{Host, tensor, values};
use std::sync::Arc;

#[derive(Clone, Copy, Debug)]
pub struct Convolution {
    pub shape: Shape,
    pub epilogue: Epilogue,
}

/// Operations after the convolution.
#[derive(Clone, Copy, Debug)]
pub enum Epilogue {
    Nothing,
    Relu,
    /// ReLU and 2 × 2 max-pooling.
    Pooled,
}

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

impl Operation<3, 2> for Convolution {
    type Saved = Passed;

    fn forward(&self, [x, weight, bias]: [Host; 3]) -> (Host, Passed) {
        let (shape, x) = (&self.shape, values(&x));
        let (weight, bias) = (values(&weight), values(&bias));
        let plain = |relu| tensor(shape.forward(x, weight, bias, relu), shape.outputs());
        match self.epilogue {
            Epilogue::Nothing => (plain(false), Passed::All),
            Epilogue::Relu => {
                let output = plain(true);
                (output.clone(), Passed::Positive(output))
            }
            Epilogue::Pooled => {
                let (output, taken) = shape.forward_pooled(x, weight, bias);
                let [batch, filters, height, width] = shape.outputs();
                (tensor(output, [batch, filters, height / 2, width / 2]), Passed::Taken(Arc::new(taken)))
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
        let (shape, grad) = (&self.shape, values(&grad));
        let gradient = match &passed {
            Passed::All => grad.into(),
            Passed::Positive(output) => Gradient::Whole(Whole { values: grad, output: Some(values(output)) }),
            Passed::Taken(taken) => Gradient::Pooled(Pooled { values: grad, taken }),
        };
        let (mut for_weight, mut for_bias) = (None, None);
        if wanted[1] || wanted[2] {
            let (weights, biases) = shape.gradients(values(&x), gradient);
            for_weight = Some(tensor(weights, shape.weights()));
            for_bias = wanted[2].then(|| tensor(biases, [shape.weights()[0]]));
        }
        let for_x =
            wanted[0].then(|| tensor(shape.input_gradient(values(&weight), gradient), shape.inputs()));
        [for_x, for_weight, for_bias]
    }
}

/// A transposed convolution: the gradient of the images of a convolution, whose output has the shape of `x`.
#[derive(Clone, Copy, Debug)]
pub struct Transposed(pub Shape);

impl Operation<3, 2> for Transposed {
    type Saved = ();

    fn forward(&self, [x, weight, bias]: [Host; 3]) -> (Host, ()) {
        let mut output = self.0.input_gradient(values(&weight), values(&x).into());
        let shape @ [_, _, height, width] = self.0.inputs();
        if !values(&bias).is_empty() {
            conv::add_bias(&mut output, values(&bias), height * width);
        }
        (tensor(output, shape), ())
    }

    fn backward(&self, [x, weight]: [Host; 2], (): (), grad: Host, wanted: [bool; 3]) -> [Option<Host>; 3] {
        let (shape, grad) = (&self.0, values(&grad));
        let for_x =
            wanted[0].then(|| tensor(shape.forward(grad, values(&weight), &[], false), shape.outputs()));
        let for_weight =
            wanted[1].then(|| tensor(shape.gradients(grad, values(&x).into()).0, shape.weights()));
        let [_, channels, height, width] = shape.inputs();
        let for_bias =
            wanted[2].then(|| tensor(conv::channel_sums(grad, channels, height * width), [channels]));
        [for_x, for_weight, for_bias]
    }
}

impl Operation<3, 2> for Depthwise {
    type Saved = ();

    fn forward(&self, [x, weight, bias]: [Host; 3]) -> (Host, ()) {
        (tensor(Depthwise::forward(self, values(&x), values(&weight), values(&bias)), self.outputs()), ())
    }

    fn backward(&self, [x, weight]: [Host; 2], (): (), grad: Host, wanted: [bool; 3]) -> [Option<Host>; 3] {
        let ([_, filters, height, width], grad) = (self.outputs(), values(&grad));
        let for_x = wanted[0].then(|| tensor(self.input_gradient(values(&weight), grad), self.inputs()));
        let for_weight = wanted[1].then(|| tensor(self.weight_gradient(values(&x), grad), self.weights()));
        let for_bias =
            wanted[2].then(|| tensor(conv::channel_sums(grad, filters, height * width), [filters]));
        [for_x, for_weight, for_bias]
    }
}
