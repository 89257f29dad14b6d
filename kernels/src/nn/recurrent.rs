//! Recurrent layers.

use super::drop_in::drop_in;
use crate::layers;
use burn::nn::{Initializer, LstmState, activation::ActivationConfig};
use burn::tensor::{Device, Tensor};

drop_in! {
    /// LSTM (Hochreiter and Schmidhuber 1997) in one direction.
    Lstm, LstmConfig;
    new(d_input: usize, d_hidden: usize, bias: bool),
    with(
        with_initializer: Initializer,
        with_batch_first: bool,
        with_reverse: bool,
        with_clip: Option<f64>,
        with_input_forget: bool,
        with_gate_activation: ActivationConfig,
        with_cell_activation: ActivationConfig,
        with_hidden_activation: ActivationConfig
    ),
    init(device: &Device),
    /// Maps `[batch, time, d_input]`, or `[time, batch, d_input]` without `batch_first`, to the hidden states of all steps and
    /// the last state; see [`layers::lstm`]. Without a `state`, the first is zero.
    forward(input: Tensor<3>, state: Option<LstmState<2>>) -> (Tensor<3>, LstmState<2>) = layers::lstm
}

drop_in! {
    /// LSTM in both directions (Graves and Schmidhuber 2005).
    BiLstm, BiLstmConfig;
    new(d_input: usize, d_hidden: usize, bias: bool),
    with(
        with_initializer: Initializer,
        with_batch_first: bool,
        with_clip: Option<f64>,
        with_input_forget: bool,
        with_gate_activation: ActivationConfig,
        with_cell_activation: ActivationConfig,
        with_hidden_activation: ActivationConfig
    ),
    init(device: &Device),
    /// Maps `[batch, time, d_input]`, or `[time, batch, d_input]` without `batch_first`, to the hidden states of both directions
    /// side by side and the last states, `[2, batch, d_hidden]`; see [`layers::bi_lstm`].
    forward(input: Tensor<3>, state: Option<LstmState<3>>) -> (Tensor<3>, LstmState<3>) = layers::bi_lstm
}

drop_in! {
    /// GRU in both directions.
    BiGru, BiGruConfig;
    new(d_input: usize, d_hidden: usize, bias: bool),
    with(
        with_reset_after: bool,
        with_initializer: Initializer,
        with_batch_first: bool,
        with_gate_activation: ActivationConfig,
        with_hidden_activation: ActivationConfig,
        with_clip: Option<f64>
    ),
    init(device: &Device),
    /// Maps `[batch, time, d_input]`, or `[time, batch, d_input]` without `batch_first`, to the hidden states of both directions
    /// side by side and the last states, `[2, batch, d_hidden]`; see [`layers::bi_gru`].
    forward(input: Tensor<3>, state: Option<Tensor<3>>) -> (Tensor<3>, Tensor<3>) = layers::bi_gru
}

drop_in! {
    /// GRU (Cho et al. 2014, arXiv 1406.1078) in one direction.
    Gru, GruConfig;
    new(d_input: usize, d_hidden: usize, bias: bool),
    with(
        with_reset_after: bool,
        with_initializer: Initializer,
        with_gate_activation: ActivationConfig,
        with_hidden_activation: ActivationConfig,
        with_clip: Option<f64>
    ),
    init(device: &Device),
    /// Maps `[batch, time, d_input]` to the hidden states of all steps; see [`layers::gru`]. Without a `state`, the first is
    /// zero.
    forward(input: Tensor<3>, state: Option<Tensor<2>>) -> Tensor<3> = layers::gru
}
