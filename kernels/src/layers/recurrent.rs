//! Recurrent layers: all gates and all time steps in one operation.

use super::linear::no_bias;
use super::operation::{self, shaped};
use crate::host_tensor::{Host, is_host, part, tensor, values};
use crate::recurrent::{self, Recurrent, Sizes};
use burn::backend::{Dispatch, Flex, TensorMetadata, ops::FloatTensorOps, tensor::FloatTensor};
use burn::nn::{BiGru, BiLstm, GateController, Gru, Lstm, LstmState, activation::Activation};
use burn::tensor::Tensor;

/// Computes `layer.forward(x, state)`.
///
/// The kernel supports the gates and activations of PyTorch's LSTM, without clipping of the cell state.
pub fn lstm(layer: &Lstm, x: Tensor<3>, state: Option<LstmState<2>>) -> (Tensor<3>, LstmState<2>) {
    let activations = [&layer.gate_activation, &layer.cell_activation, &layer.hidden_activation];
    let plain = !layer.input_forget && covered(&x, &layer.input_gate, layer.clip, &activations);
    let Some(forget_gate) = layer.forget_gate.as_ref().filter(|_| plain) else {
        return layer.forward(x, state);
    };
    let x = if layer.batch_first { x } else { x.swap_dims(0, 1) };
    let ([batch, time, inputs], hidden) = (x.dims(), layer.d_hidden);
    let gates = [&layer.input_gate, forget_gate, &layer.cell_gate, &layer.output_gate];
    let [(input, input_bias), (recurrent, recurrent_bias)] = joined(gates);
    let bias = match (input_bias, recurrent_bias) {
        (Some(input), Some(recurrent)) => input + recurrent,
        (one, other) => one.or(other).unwrap_or_else(|| no_bias(&x.device())),
    };
    let zeros = || Tensor::zeros([batch, hidden], &x.device());
    let (cell, first) = state.map_or_else(|| (zeros(), zeros()), LstmState::unpack);
    let kernel = recurrent::Lstm(Sizes { batch, time, inputs, hidden, reverse: layer.reverse });
    let [input, recurrent, state, cell] =
        [input, recurrent, first.clone(), cell].map(|matrix| matrix.into_dispatch());
    let packed = run(kernel, [x.into_dispatch(), input, recurrent, bias.into_dispatch(), state, cell]);
    let states = batch * time * hidden;
    let output = packed.clone().narrow(0, 0, states).reshape([batch, time, hidden]);
    let cell = packed.narrow(0, states, batch * hidden).reshape([batch, hidden]);
    let last = if layer.reverse { 0 } else { time.saturating_sub(1) };
    let hidden = if time == 0 { first } else { output.clone().narrow(1, last, 1).squeeze_dim(1) };
    let output = if layer.batch_first { output } else { output.swap_dims(0, 1) };
    (output, LstmState::new(cell, hidden))
}

/// Computes `layer.forward(x, state)`, with [`lstm()`] in each direction.
pub fn bi_lstm(layer: &BiLstm, x: Tensor<3>, state: Option<LstmState<3>>) -> (Tensor<3>, LstmState<3>) {
    let x = if layer.batch_first { x } else { x.swap_dims(0, 1) };
    let reverse = Lstm { reverse: true, ..layer.reverse.clone() };
    let [(forwards, first), (backwards, second)] = [(0, &layer.forward), (1, &reverse)].map(|(at, layer)| {
        let of = |states: Tensor<3>| states.narrow(0, at, 1).squeeze_dim(0);
        let state = state.clone().map(|LstmState { cell, hidden }| LstmState::new(of(cell), of(hidden)));
        lstm(layer, x.clone(), state)
    });
    let output = side_by_side([forwards, backwards]);
    let output = if layer.batch_first { output } else { output.swap_dims(0, 1) };
    (output, LstmState::stack(vec![first, second], 0))
}

/// Computes `layer.forward(x, state)`.
///
/// The kernel supports the gates and activations of PyTorch's GRU, without clipping of the state.
pub fn gru(layer: &Gru, x: Tensor<3>, state: Option<Tensor<2>>) -> Tensor<3> {
    match gru_is_covered(layer, &x) {
        true => directed_gru(layer, x, state, false),
        false => layer.forward(x, state),
    }
}

/// Computes `layer.forward(x, state)`, with [`gru()`] in each direction.
pub fn bi_gru(layer: &BiGru, x: Tensor<3>, state: Option<Tensor<3>>) -> (Tensor<3>, Tensor<3>) {
    let both = [&layer.forward, &layer.reverse];
    if x.dims().contains(&0) || !both.iter().all(|layer| gru_is_covered(layer, &x)) {
        return layer.forward(x, state);
    }
    let x = if layer.batch_first { x } else { x.swap_dims(0, 1) };
    let [batch, time, _] = x.dims();
    let both = [(0, both[0], time - 1), (1, both[1], 0)].map(|(at, layer, last)| {
        let of = |states: Tensor<3>| states.slice([at..at + 1, 0..batch, 0..layer.d_hidden]).squeeze_dim(0);
        let state = state.clone().map(of);
        let output = directed_gru(layer, x.clone(), state, at == 1);
        (output.clone(), output.narrow(1, last, 1).swap_dims(0, 1))
    });
    let [(forwards, first), (backwards, second)] = both;
    let output = side_by_side([forwards, backwards]);
    let output = if layer.batch_first { output } else { output.swap_dims(0, 1) };
    (output, Tensor::cat(vec![first, second], 0))
}

fn gru_is_covered(layer: &Gru, x: &Tensor<3>) -> bool {
    let activations = [&layer.gate_activation, &layer.hidden_activation];
    layer.reset_after && covered(x, &layer.new_gate, layer.clip, &activations)
}

fn directed_gru(layer: &Gru, x: Tensor<3>, state: Option<Tensor<2>>, reverse: bool) -> Tensor<3> {
    let ([batch, time, inputs], hidden) = (x.dims(), layer.d_hidden);
    let both = joined([&layer.reset_gate, &layer.update_gate, &layer.new_gate]);
    let [(input, input_bias), (recurrent, recurrent_bias)] = both.map(|(weight, bias)| {
        (weight.into_dispatch(), bias.unwrap_or_else(|| no_bias(&x.device())).into_dispatch())
    });
    let first = state.unwrap_or_else(|| Tensor::zeros([batch, hidden], &x.device()));
    let kernel = recurrent::Gru(Sizes { batch, time, inputs, hidden, reverse });
    let inputs = [x.into_dispatch(), input, recurrent, input_bias, recurrent_bias, first.into_dispatch()];
    run(kernel, inputs).reshape([batch, time, hidden])
}

/// Whether the kernels support the activations, of the gates first, and the tensors.
fn covered(x: &Tensor<3>, gate: &GateController, clip: Option<f64>, activations: &[&Activation]) -> bool {
    clip.is_none()
        && matches!(activations[0], Activation::Sigmoid(_))
        && activations[1..].iter().all(|activation| matches!(activation, Activation::Tanh(_)))
        && is_host(x)
        && is_host(&*gate.input_transform.weight)
}

/// Weights and biases of the gates side by side, for inputs and for hidden states.
fn joined<const N: usize>(gates: [&GateController; N]) -> [(Tensor<2>, Option<Tensor<1>>); 2] {
    let both = [gates.map(|gate| &gate.input_transform), gates.map(|gate| &gate.hidden_transform)];
    both.map(|gates| {
        let weights = gates.map(|gate| gate.weight.val());
        let biases: Option<Vec<_>> =
            gates.iter().map(|gate| gate.bias.as_ref().map(|bias| bias.val())).collect();
        (side_by_side(weights), biases.map(|biases| Tensor::cat(biases, 0)))
    })
}

/// Tensors along their last dimension. On a CPU, gradients are contiguous, unlike those of Burn's operation.
fn side_by_side<const D: usize, const N: usize>(tensors: [Tensor<D>; N]) -> Tensor<D> {
    match tensors.iter().all(is_host) {
        true => operation::run(tensors.map(Tensor::into_dispatch), |inputs: [Host; N]| {
            let lengths = inputs.each_ref().map(|input| input.shape()[D - 1]);
            (Flex::float_cat(inputs.into(), D - 1), move |[]: [Host; 0], grad: Host, _| {
                let mut end = 0;
                lengths.map(|length| {
                    end += length;
                    Some(part(&grad, D - 1, end - length..end))
                })
            })
        }),
        false => Tensor::cat(tensors.into(), D - 1),
    }
}

/// The outputs of a layer.
fn run<R: Recurrent>(layer: R, inputs: [FloatTensor<Dispatch>; 6]) -> Tensor<1> {
    operation::run(inputs, |inputs: [Host; 6]| {
        let [outputs, saved] = layer.forward(inputs.each_ref().map(values));
        let len = outputs.len();
        let outputs = tensor(outputs, [len]);
        (outputs.clone(), move |read: [Host; 6], grad: Host, wanted: [bool; 6]| {
            let (inputs, both) = (read.each_ref().map(values), [values(&outputs), values(&grad)]);
            shaped(layer.backward(inputs, both, &saved, wanted[0]), &read, wanted)
        })
    })
}
