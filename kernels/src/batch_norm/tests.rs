//! Comparison of the passes with plain loops and with one another.

use super::{Affine, Centred, PooledGradient, Relu, apply, sums};
use crate::{
    pool::{self, Mapped, Windows},
    tests::{assert_close, everywhere, noise, same_for_every_number_of_threads},
};

#[test]
fn batch_norm_passes_equal_plain_loops() {
    for shape in [[3, 2, 37], [70, 2, 1], [33, 2, 7]] {
        passes_equal_plain_loops(shape);
    }
}

fn passes_equal_plain_loops(shape: [usize; 3]) {
    let len = shape.iter().product();
    let (a, b, centres) = (noise(7, len), noise(8, len), [0.5, -2.0]);
    everywhere(|width| {
        let (plain, centred) =
            (Centred { values: &a, centres: None }, Centred { values: &b, centres: Some(&centres) });
        let (mut wanted, mut lines) = ([[0.0; 2]; 2], Vec::new());
        for at in 0..a.len() {
            let channel = at / shape[2] % 2;
            let (a, b) = (f64::from(a[at]), f64::from(b[at] - centres[channel]));
            wanted[channel][0] += a;
            wanted[channel][1] += a * b;
            let Affine { factors, constant } = LINES[channel];
            lines.push(f64::from(factors[0]) * a + f64::from(factors[1]) * b + f64::from(constant));
        }
        assert_close(&totals(&sums(plain, centred, None, shape)), wanted.as_flattened(), width);
        assert_close(&apply(&LINES, plain, Some(centred), Relu::None, shape), &lines, width);
    });
}

#[test]
#[should_panic(expected = "an image that fits in memory")]
fn overflowing_planes_are_rejected() {
    // In wrapping arithmetic, two such planes have two values.
    let positions = (1 << (usize::BITS - 1)) + 1;
    let line = Affine { factors: [1.0, 0.0], constant: 0.0 };
    drop(apply(&[line; 2], Centred { values: &[], centres: None }, None, Relu::None, [1, 2, positions]));
}

const MAPS: [Affine; 2] =
    [Affine { factors: [1.5, 0.0], constant: 0.25 }, Affine { factors: [-0.5, 0.0], constant: 0.1 }];
const LINES: [Affine; 2] =
    [Affine { factors: [2.0, -1.0], constant: 0.25 }, Affine { factors: [0.5, 4.0], constant: -3.0 }];

fn totals(sums: &[[f64; 2]]) -> Vec<f32> {
    sums.as_flattened().iter().map(|sum| *sum as f32).collect()
}

#[test]
fn relu_in_the_same_pass_equals_relu_after_it_to_the_bit() {
    for shape in [[3, 2, 37], [70, 2, 1], [33, 2, 7]] {
        fused_equals_separate(shape);
    }
}

fn fused_equals_separate(shape: [usize; 3]) {
    let len = shape.iter().product();
    let (x, gradient) = (noise(7, len), noise(8, len));
    let x = Centred { values: &x, centres: Some(&[0.5, -2.0]) };
    everywhere(|width| {
        let normalised = apply(&MAPS, x, None, Relu::None, shape);
        let positive: Vec<f32> = normalised.iter().map(|value| value.max(0.0)).collect();
        assert!(positive.contains(&0.0) && apply(&MAPS, x, None, Relu::After, shape) == positive, "{width}");

        let passed: Vec<f32> =
            gradient.iter().zip(&positive).map(|(g, y)| if *y > 0.0 { *g } else { 0.0 }).collect();
        let plain = Centred { values: &passed, centres: None };
        let gradient = Centred { values: &gradient, centres: None };
        let fused = apply(&LINES, gradient, Some(x), Relu::Before(&MAPS), shape);
        assert!(fused == apply(&LINES, plain, Some(x), Relu::None, shape), "{width}");
        let wanted = sums(plain, x, None, shape);
        assert_close(&totals(&sums(gradient, x, Some(&MAPS), shape)), wanted.as_flattened(), width);
    });
}

#[test]
fn pooling_in_the_same_pass_equals_pooling_after_it_to_the_bit() {
    everywhere(|width| {
        for (kernel, size) in [([2, 2], [24, 24]), ([2, 2], [7, 5]), ([3, 1], [9, 4]), ([1, 4], [3, 17])] {
            let what = format!("{width}, {kernel:?} of {size:?}");
            let windows = Windows::new([3, 2, size[0], size[1]], kernel).expect("covered");
            let shape = [3, 2, size[0] * size[1]];
            let x = noise(3, shape.iter().product());
            let x = Centred { values: &x, centres: Some(&[0.25, -0.5]) };
            let Mapped { values, taken, inputs } = pool::forward_mapped(&MAPS, x, &windows);
            let wanted = pool::forward(&apply(&MAPS, x, None, Relu::None, shape), &windows);
            assert!(values.contains(&0.0) && (&values, &taken) == (&wanted.0, &wanted.1), "{what}");

            let gradient = noise(4, values.len());
            let spread = pool::backward(&gradient, &taken, &windows);
            let plain = Centred { values: &spread, centres: None };
            let fused =
                PooledGradient { values: &gradient, taken: &taken, inputs: &inputs, windows: &windows, x };
            assert!(fused.apply(&LINES) == apply(&LINES, plain, Some(x), Relu::None, shape), "{what}");
            assert_close(&totals(&fused.sums()), sums(plain, x, None, shape).as_flattened(), &what);
        }
    });
}

#[test]
fn passes_are_bit_identical_for_every_number_of_threads() {
    let windows = Windows::new([5, 2, 8, 6], [2, 2]).expect("covered");
    let (x, gradient, shape) = (noise(1, 480), noise(2, 480), [5, 2, 48]);
    same_for_every_number_of_threads(|| {
        let x = Centred { values: &x, centres: Some(&[0.25, -0.5]) };
        let pooled = pool::forward_mapped(&MAPS, x, &windows);
        let through_pool = PooledGradient {
            values: &gradient[..120],
            taken: &pooled.taken,
            inputs: &pooled.inputs,
            windows: &windows,
            x,
        };
        let plain = Centred { values: &gradient, centres: None };
        let sums = [sums(plain, x, None, shape), sums(plain, x, Some(&MAPS), shape), through_pool.sums()];
        let gradients = [
            apply(&LINES, plain, Some(x), Relu::None, shape),
            apply(&LINES, plain, Some(x), Relu::Before(&MAPS), shape),
            through_pool.apply(&LINES),
        ];
        (apply(&MAPS, x, None, Relu::After, shape), pooled.clone(), sums, gradients)
    });
}
