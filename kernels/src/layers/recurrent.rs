//! Recurrent layers: all gates and all time steps in one operation.

use super::linear::no_bias;
use super::operation::{self, Operation, shaped};
use crate::gru::{self, Gru as GruKernel};
use crate::host_tensor::{Host, is_host, tensor, values};
use crate::lstm::{self, Lstm as LstmKernel};
use burn::nn::{Gru, Linear, Lstm, LstmState, activation::Activation};
use burn::tensor::Tensor;

/// Computes `layer.forward(x, state)`.
///
/// The kernel supports the gates and activations of PyTorch's LSTM, without clipping of the cell state.
pub fn lstm(layer: &Lstm, x: Tensor<3>, state: Option<LstmState<2>>) -> (Tensor<3>, LstmState<2>) {
    let Some(forget_gate) = layer.forget_gate.as_ref().filter(|_| covered(layer, &x)) else {
        return layer.forward(x, state);
    };
    let x = if layer.batch_first { x } else { x.swap_dims(0, 1) };
    let ([batch, time, inputs], hidden) = (x.dims(), layer.d_hidden);
    let gates = [&layer.input_gate, forget_gate, &layer.cell_gate, &layer.output_gate];
    let input = joined(gates.map(|gate| &gate.input_transform));
    let recurrent = joined(gates.map(|gate| &gate.hidden_transform));
    let bias = match (input.1, recurrent.1) {
        (Some(input), Some(recurrent)) => input + recurrent,
        (one, other) => one.or(other).unwrap_or_else(|| no_bias(&x.device())),
    };
    let zeros = || Tensor::zeros([batch, hidden], &x.device());
    let (cell, first) = state.map_or_else(|| (zeros(), zeros()), LstmState::unpack);
    let kernel = LstmKernel { batch, time, inputs, hidden, reverse: layer.reverse };
    let all = [x.into_dispatch(), input.0.into_dispatch(), recurrent.0.into_dispatch(), bias.into_dispatch()];
    let [x, input, recurrent, bias] = all;
    let packed: Tensor<1> = operation::run(
        kernel,
        [x, input, recurrent, bias, first.clone().into_dispatch(), cell.into_dispatch()],
    );
    let states = batch * time * hidden;
    let output = packed.clone().narrow(0, 0, states).reshape([batch, time, hidden]);
    let cell = packed.narrow(0, states, batch * hidden).reshape([batch, hidden]);
    let last = if layer.reverse { 0 } else { time.saturating_sub(1) };
    let hidden = if time == 0 { first } else { output.clone().narrow(1, last, 1).squeeze_dim(1) };
    let output = if layer.batch_first { output } else { output.swap_dims(0, 1) };
    (output, LstmState::new(cell, hidden))
}

/// Computes `layer.forward(x, state)`.
///
/// The kernel supports the gates and activations of PyTorch's GRU, without clipping of the state.
pub fn gru(layer: &Gru, x: Tensor<3>, state: Option<Tensor<2>>) -> Tensor<3> {
    let gates = [&layer.reset_gate, &layer.update_gate, &layer.new_gate];
    let plain = layer.reset_after
        && layer.clip.is_none()
        && matches!(layer.gate_activation, Activation::Sigmoid(_))
        && matches!(layer.hidden_activation, Activation::Tanh(_));
    if !plain || !is_host(&x) || !is_host(&*layer.new_gate.input_transform.weight) {
        return layer.forward(x, state);
    }
    let ([batch, time, inputs], hidden) = (x.dims(), layer.d_hidden);
    let input = joined(gates.map(|gate| &gate.input_transform));
    let recurrent = joined(gates.map(|gate| &gate.hidden_transform));
    let [input_bias, recurrent_bias] =
        [input.1, recurrent.1].map(|bias| bias.unwrap_or_else(|| no_bias(&x.device())).into_dispatch());
    let first = state.unwrap_or_else(|| Tensor::zeros([batch, hidden], &x.device()));
    let kernel = GruKernel { batch, time, inputs, hidden, reverse: false };
    let weights = [input.0, recurrent.0].map(Tensor::into_dispatch);
    let [input, recurrent] = weights;
    let inputs = [x.into_dispatch(), input, recurrent, input_bias, recurrent_bias, first.into_dispatch()];
    operation::run(kernel, inputs)
}

fn covered(layer: &Lstm, x: &Tensor<3>) -> bool {
    layer.clip.is_none()
        && !layer.input_forget
        && matches!(layer.gate_activation, Activation::Sigmoid(_))
        && [&layer.cell_activation, &layer.hidden_activation].iter().all(|a| matches!(a, Activation::Tanh(_)))
        && is_host(x)
        && is_host(&*layer.input_gate.input_transform.weight)
}

/// Weights and biases of the gates side by side.
fn joined<const N: usize>(gates: [&Linear; N]) -> (Tensor<2>, Option<Tensor<1>>) {
    let weights = gates.iter().map(|gate| gate.weight.val()).collect();
    let biases: Option<Vec<_>> = gates.iter().map(|gate| gate.bias.as_ref().map(|bias| bias.val())).collect();
    (Tensor::cat(weights, 1), biases.map(|biases| Tensor::cat(biases, 0)))
}

/// Inputs: `x`, both weights, bias, and the initial hidden and cell states. Output: [`lstm::Forward::outputs`].
impl Operation<6, 6> for LstmKernel {
    /// The output and what the kernel saves.
    type Saved = (Host, lstm::Saved);

    const READS: [usize; 6] = [0, 1, 2, 3, 4, 5];

    fn forward(&self, [x, input, hidden, bias, first, cell]: [Host; 6]) -> (Host, Self::Saved) {
        let weights = lstm::Weights { input: values(&input), hidden: values(&hidden), bias: values(&bias) };
        let lstm::Forward { outputs, saved } =
            LstmKernel::forward(self, values(&x), weights, [values(&first), values(&cell)]);
        let len = outputs.len();
        let outputs = tensor(outputs, [len]);
        (outputs.clone(), (outputs, saved))
    }

    fn backward(
        &self,
        read: [Host; 6],
        (outputs, saved): Self::Saved,
        grad: Host,
        wanted: [bool; 6],
    ) -> [Option<Host>; 6] {
        let [x, input, hidden, bias, first, cell] = read.each_ref().map(values);
        let weights = lstm::Weights { input, hidden, bias };
        let both = [values(&outputs), values(&grad)];
        let gradients = LstmKernel::backward(self, x, weights, [first, cell], both, &saved, wanted[0]);
        let [for_first, for_cell] = gradients.state;
        let all = [gradients.x, gradients.input, gradients.hidden, gradients.bias, for_first, for_cell];
        shaped(all, &read, wanted)
    }
}

/// Inputs: `x`, both weights, both biases and the initial states.
impl Operation<6, 6> for GruKernel {
    /// The output and what the kernel saves.
    type Saved = (Host, gru::Saved);

    const READS: [usize; 6] = [0, 1, 2, 3, 4, 5];

    fn forward(&self, [x, input, hidden, input_bias, hidden_bias, first]: [Host; 6]) -> (Host, Self::Saved) {
        let biases = [values(&input_bias), values(&hidden_bias)];
        let weights = gru::Weights { input: values(&input), hidden: values(&hidden), biases };
        let gru::Forward { outputs, saved } = GruKernel::forward(self, values(&x), weights, values(&first));
        let outputs = tensor(outputs, [self.batch, self.time, self.hidden]);
        (outputs.clone(), (outputs, saved))
    }

    fn backward(
        &self,
        read: [Host; 6],
        (outputs, saved): Self::Saved,
        grad: Host,
        wanted: [bool; 6],
    ) -> [Option<Host>; 6] {
        let [x, input, hidden, input_bias, hidden_bias, first] = read.each_ref().map(values);
        let weights = gru::Weights { input, hidden, biases: [input_bias, hidden_bias] };
        let both = [values(&outputs), values(&grad)];
        let gradients = GruKernel::backward(self, x, weights, first, both, &saved, wanted[0]);
        let [for_input_bias, for_hidden_bias] = gradients.biases;
        let gru::Gradients { x, input, hidden, state, .. } = gradients;
        let all = [x, input, hidden, for_input_bias, for_hidden_bias, state];
        shaped(all, &read, wanted)
    }
}
