//! Operations of images, weights and bias: convolutions and their gradients.

use crate::autodiff::Backward;
use crate::conv::{self, Depthwise, Gradient, Pooled, Shape, Whole};
use crate::host_tensor::{Host, part, tensor, values};
use burn::backend::{Flex, TensorMetadata, ops::FloatTensorOps};

/// Operations after the convolution.
#[derive(Clone, Copy, Debug)]
pub enum Epilogue {
    Nothing,
    Relu,
    /// ReLU and 2 × 2 max-pooling.
    Pooled,
}

/// The part of the output that backward needs.
enum Passed {
    /// Nothing: every output passes its gradient on.
    All,
    /// The output of a ReLU.
    Positive(Host),
    /// Index of each pooled value within its window.
    Taken(Vec<u8>),
}

/// A convolution.
pub fn convolution(
    shape: Shape,
    epilogue: Epilogue,
    [x, weight, bias]: [Host; 3],
) -> (Host, impl Backward<Flex, 3, 2>) {
    let (x, weight, bias) = (values(&x), values(&weight), values(&bias));
    let plain = |relu| tensor(shape.forward(x, weight, bias, relu), shape.outputs());
    let (output, passed) = match epilogue {
        Epilogue::Nothing => (plain(false), Passed::All),
        Epilogue::Relu => {
            let output = plain(true);
            (output.clone(), Passed::Positive(output))
        }
        Epilogue::Pooled => {
            let (output, taken) = shape.forward_pooled(x, weight, bias);
            let [batch, filters, height, width] = shape.outputs();
            (tensor(output, [batch, filters, height / 2, width / 2]), Passed::Taken(taken))
        }
    };
    let backward = move |[x, weight]: [Host; 2], grad: Host, wanted: [bool; 3]| {
        let grad = values(&grad);
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
    };
    (output, backward)
}

/// A transposed convolution: the gradient of the images of a convolution of `shape`, whose output has the shape of `x`.
pub fn transposed(shape: Shape, [x, weight, bias]: [Host; 3]) -> (Host, impl Backward<Flex, 3, 2>) {
    let mut output = shape.input_gradient(values(&weight), values(&x).into());
    let inputs @ [_, channels, height, width] = shape.inputs();
    if !values(&bias).is_empty() {
        conv::add_bias(&mut output, values(&bias), height * width);
    }
    let backward = move |[x, weight]: [Host; 2], grad: Host, wanted: [bool; 3]| {
        let grad = values(&grad);
        let for_x =
            wanted[0].then(|| tensor(shape.forward(grad, values(&weight), &[], false), shape.outputs()));
        let for_weight =
            wanted[1].then(|| tensor(shape.gradients(grad, values(&x).into()).0, shape.weights()));
        let for_bias =
            wanted[2].then(|| tensor(conv::channel_sums(grad, channels, height * width), [channels]));
        [for_x, for_weight, for_bias]
    };
    (tensor(output, inputs), backward)
}

/// A convolution of each channel on its own.
pub fn depthwise(shape: Depthwise, [x, weight, bias]: [Host; 3]) -> (Host, impl Backward<Flex, 3, 2>) {
    let output = tensor(shape.forward(values(&x), values(&weight), values(&bias)), shape.outputs());
    let backward = move |[x, weight]: [Host; 2], grad: Host, wanted: [bool; 3]| {
        let ([_, filters, height, width], grad) = (shape.outputs(), values(&grad));
        let for_x = wanted[0].then(|| tensor(shape.input_gradient(values(&weight), grad), shape.inputs()));
        let for_weight = wanted[1].then(|| tensor(shape.weight_gradient(values(&x), grad), shape.weights()));
        let for_bias =
            wanted[2].then(|| tensor(conv::channel_sums(grad, filters, height * width), [filters]));
        [for_x, for_weight, for_bias]
    };
    (output, backward)
}

/// An operation of `each` group of channels.
pub fn grouped<F: Backward<Flex, 3, 2>>(
    groups: usize,
    inputs: [Host; 3],
    each: impl Fn([Host; 3]) -> (Host, F),
) -> (Host, impl Backward<Flex, 3, 2>) {
    /// Axes of images, weights and bias that are divided.
    const AXES: [usize; 3] = [1, 0, 0];
    let group = move |whole: &Host, axis: usize, number: usize| {
        let len = whole.shape()[axis] / groups;
        part(whole, axis, number * len..(number + 1) * len)
    };
    let (outputs, backwards): (Vec<_>, Vec<_>) = (0..groups)
        .map(|number| each(std::array::from_fn(|at| group(&inputs[at], AXES[at], number))))
        .unzip();
    let backward = move |read: [Host; 2], grad: Host, wanted: [bool; 3]| {
        let part = |(number, backward): (usize, F)| {
            let read = std::array::from_fn(|at| group(&read[at], AXES[at], number));
            backward(read, group(&grad, 1, number), wanted)
        };
        let parts: Vec<_> = backwards.into_iter().enumerate().map(part).collect();
        std::array::from_fn(|at| {
            let gradients: Option<Vec<_>> = parts.iter().map(|part| part[at].clone()).collect();
            gradients.map(|gradients| Flex::float_cat(gradients, AXES[at]))
        })
    };
    (Flex::float_cat(outputs, 1), backward)
}
