//! Results of the kernels of transformers for several numbers of threads.

use crate::{
    adam::{Adam, Decay},
    attention::{Attention, Forward},
    gelu,
    layer_norm::LayerNorm,
    linear,
    tests::{noise, same_for_every_number_of_threads},
};

#[test]
fn kernels_of_transformers_are_bit_identical_for_every_number_of_threads() {
    let (rows, width) = (3 * 101, 130);
    same_for_every_number_of_threads(|| {
        let (x, gradient, gamma) = (noise(1, rows * width), noise(2, rows * width), noise(3, width));
        let time = 101;
        let attention =
            Attention { batch: 3, queries: time, keys: time, heads: 5, width, mask: None, dropout: None };
        let all = noise(4, rows * width * 3);
        let Forward { context: output, weights, .. } = attention.forward(&[&all]);
        let [for_all, ..] = attention.backward(&[&all], &weights, (&gradient, None));
        let norm = LayerNorm { gamma: &gamma, beta: &gamma, epsilon: 1e-5, centred: true };
        let (for_weight, for_bias) = linear::gradients(&x, &gradient, [rows, width, width]);
        let adam =
            Adam { rate: 0.1, betas: [0.9, 0.99], epsilon: 1e-8, decay: Decay::Parameter(0.9), time: 2 };
        let (mut first, mut second) =
            (x.clone(), gelu::forward(&x).iter().map(|x| x * x).collect::<Vec<_>>());
        let moved = adam.step(&x, [&mut first, &mut second], &gradient);
        let products = [linear::forward(&x, &noise(5, width * width), &gamma, width), for_weight, for_bias];
        // Few rows of many outputs.
        let for_few = linear::input_gradient(&noise(6, 700 * 257), &gradient[..9 * 257], 257);
        let rms_norm = LayerNorm { beta: &[], centred: false, ..norm };
        let norm = [norm.forward(&x), rms_norm.forward(&x)]
            .into_iter()
            .chain(norm.backward(&x, &gradient))
            .chain(rms_norm.backward(&x, &gradient));
        [output, weights, for_all, moved, first, second, for_few]
            .into_iter()
            .chain(products)
            .chain(norm)
            .collect::<Vec<_>>()
    });
}
