//! Comparison of every kernel with plain loops, for every vector width that this processor has.

use crate::{
    conv::{Gradient, Pooled, Shape, Whole},
    pool::{self, Spans, Windows},
    sgd::Sgd,
    simd::PRETEND,
};
use pulp::Arch;

/// Runs `test` with each width, on one thread, because the override is thread-local.
pub fn everywhere(test: impl Fn(&str) + Send + Sync) {
    let mut widths = vec![("one value", Arch::Scalar), ("the widest", Arch::new())];
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    widths.extend(pulp::x86::V3::try_new().map(|v3| ("AVX2", Arch::V3(v3))));
    for (name, arch) in widths {
        with_threads(1, || {
            PRETEND.set(Some(arch));
            test(name);
        });
    }
}

/// `act` on a pool of `count` threads.
pub fn with_threads<R: Send>(count: usize, act: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(count).build().expect("a pool").install(act)
}

/// Asserts that one thread and three threads give the same bits, and returns them.
pub fn same_for_every_number_of_threads<R: PartialEq + Send>(act: impl Fn() -> R + Send + Sync) -> R {
    let one = with_threads(1, &act);
    assert!(one == with_threads(3, &act), "threads must not matter");
    one
}

pub fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// The values of an f32 tensor.
#[cfg(feature = "burn")]
pub fn read<const D: usize>(tensor: burn::tensor::Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().expect("f32")
}

pub fn assert_close(ours: &[f32], wanted: &[impl Into<f64> + Copy], what: &str) {
    assert_eq!(ours.len(), wanted.len(), "{what}");
    let wanted = wanted.iter().map(|value| (*value).into());
    let scale = wanted.clone().fold(1.0f64, |most, value| most.max(value.abs()));
    for (at, (ours, wanted)) in ours.iter().zip(wanted).enumerate() {
        assert!((f64::from(*ours) - wanted).abs() <= 1e-5 * scale, "{what}: {ours} is not {wanted} at {at}");
    }
}

/// Shapes of image and weights, padding and dilation.
type Case = ([usize; 4], [usize; 4], [usize; 2], [usize; 2]);

/// Calls `meet(output, image, weight)` for every product of a convolution with `height` × `width` outputs.
fn products(case: Case, [height, width]: [usize; 2], mut meet: impl FnMut(usize, usize, usize)) {
    let ([batch, channels, rows, columns], [filters, _, kernel @ ..], padding, dilation) = case;
    for (image, filter) in (0..batch).flat_map(|image| (0..filters).map(move |filter| (image, filter))) {
        for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
            for tap in 0..channels * kernel[0] * kernel[1] {
                let (channel, at) = (tap / (kernel[0] * kernel[1]), tap % (kernel[0] * kernel[1]));
                let row = (y + at / kernel[1] * dilation[0]).wrapping_sub(padding[0]);
                let column = (x + at % kernel[1] * dilation[1]).wrapping_sub(padding[1]);
                if row < rows && column < columns {
                    let output = ((image * filters + filter) * height + y) * width + x;
                    let from = ((image * channels + channel) * rows + row) * columns + column;
                    meet(output, from, filter * channels * kernel[0] * kernel[1] + tap);
                }
            }
        }
    }
}

#[test]
fn convolution_equals_plain_loops() {
    let cases = [
        ([2, 3, 26, 26], [10, 3, 3, 3], [0, 0], [1, 1]),
        ([1, 1, 28, 28], [33, 1, 3, 3], [1, 1], [1, 1]),
        ([9, 2, 5, 7], [3, 2, 2, 3], [1, 2], [1, 2]),
        ([3, 4, 1, 1], [5, 4, 1, 1], [0, 0], [1, 1]),
        // Winograd: whole and incomplete tiles, rows longer than a vector and shorter than the padding.
        ([2, 16, 26, 26], [33, 16, 3, 3], [0, 0], [1, 1]),
        ([9, 29, 5, 8], [18, 29, 3, 3], [1, 2], [1, 1]),
        ([1, 32, 9, 45], [16, 32, 3, 3], [2, 0], [1, 1]),
        ([1, 32, 1, 1], [16, 32, 3, 3], [2, 2], [1, 1]),
    ];
    everywhere(|width| {
        for case in cases {
            let (image, weight, padding, dilation) = case;
            let shape = Shape::new(image, weight, padding.map(|zeros| [zeros; 2]), [1, 1], dilation)
                .expect("covered");
            let what = format!("{width}, {image:?} with {weight:?}");
            let [.., height, wide] = shape.outputs();
            let outputs = image[0] * weight[0] * height * wide;
            let (x, w) = (noise(1, image.iter().product()), noise(2, weight.iter().product()));
            let (bias, gradient) = (noise(3, weight[0]), noise(4, outputs));

            let [plain, cut] = [false, true].map(|relu| shape.forward(&x, &w, &bias, relu));
            let mut wanted: Vec<f64> =
                (0..outputs).map(|at| f64::from(bias[at / (height * wide) % weight[0]])).collect();
            products(case, [height, wide], |output, from, tap| wanted[output] += f64::from(x[from] * w[tap]));
            assert_close(&plain, &wanted, &what);
            assert!(cut.iter().zip(&plain).all(|(cut, plain)| *cut == plain.max(0.0)), "{what}");

            // Through the ReLU, gradients are zero where the output is zero.
            let passed: Vec<f32> =
                gradient.iter().zip(&cut).map(|(g, cut)| if *cut > 0.0 { *g } else { 0.0 }).collect();
            let through = Gradient::Whole(Whole { values: &gradient, output: Some(&cut) });
            let (mut for_x, mut for_w) = (vec![0.0; x.len()], vec![0.0; w.len()]);
            products(case, [height, wide], |output, from, tap| {
                for_x[from] += f64::from(passed[output] * w[tap]);
                for_w[tap] += f64::from(passed[output] * x[from]);
            });
            let mut for_bias = vec![0.0; weight[0]];
            for (at, passed) in passed.iter().enumerate() {
                for_bias[at / (height * wide) % weight[0]] += f64::from(*passed);
            }
            let (weights, biases) = shape.gradients(&x, through);
            assert_close(&weights, &for_w, &format!("weights, {what}"));
            assert_close(&biases, &for_bias, &format!("bias, {what}"));
            assert_close(&shape.input_gradient(&w, through), &for_x, &format!("input, {what}"));
        }
    });
}

/// Whether a convolution of stride 1 uses the algorithms for equal padding on both sides.
fn is_plain(image: [usize; 4], weight: [usize; 4], padding: [usize; 2], dilation: [usize; 2]) -> bool {
    let shape = Shape::new(image, weight, padding.map(|zeros| [zeros; 2]), [1, 1], dilation);
    shape.is_some_and(|shape| shape.plain)
}

#[test]
fn unsupported_convolutions_are_rejected() {
    let fits = |padding, dilation| is_plain([1, 2, 5, 5], [3, 2, 3, 3], padding, dilation);
    assert!(fits([2, 2], [1, 1]) && fits([0, 0], [2, 2]));
    assert!(!fits([3, 0], [1, 1]), "more padding than a kernel reaches");
    assert!(!fits([0, 0], [3, 1]), "a kernel larger than the image");
    assert!(!is_plain([1, 2, 5, 5], [3, 1, 3, 3], [0, 0], [1, 1]), "other channels");
    assert!(!is_plain([0, 2, 5, 5], [3, 2, 3, 3], [0, 0], [1, 1]), "no image");
}

#[test]
fn overflowing_sizes_are_rejected() {
    const HALF: usize = 1 << (usize::BITS - 1);
    let fits = |image, [rows, columns]: [usize; 2], padding, dilation| {
        is_plain(image, [1, 1, rows, columns], padding, dilation)
    };
    assert!(fits([1, 1, 5, 5], [3, 3], [0, 0], [2, 2]));
    assert!(!fits([1, 1, 5, 5], [3, 3], [0, 0], [HALF, 1]), "a reach that wraps round to zero");
    assert!(!fits([1, 1, 5, 5], [3, 3], [HALF, 0], [HALF + 1, 1]), "a padding that does");
    assert!(!fits([1, 1, HALF, 2], [1, 1], [0, 0], [1, 1]), "an image that does");
    assert!(!fits([HALF, 1, 2, 1], [1, 1], [0, 0], [1, 1]), "a batch that does");
    assert!(Windows::new([1, HALF, 2, 2], [2, 2]).is_none(), "planes that do");
    assert!(Spans::new([1, HALF, 2, 2], [2, 2], [1, 1], [[0; 2]; 2]).is_none(), "the same of spans");
    assert!(Spans::new([1, 1, 2, 2], [2, 2], [1, 1], [[HALF; 2]; 2]).is_none(), "padding");
    assert!(Spans::adaptive([1, 1, 2, 2], [HALF, 1]).is_none(), "an output");
}

#[test]
fn pooling_equals_plain_loops() {
    let same = |padding: usize| [[padding; 2]; 2];
    everywhere(|width| {
        for (size, kernel, stride, padding) in [
            ([24, 40], [3, 3], [2, 2], same(1)),
            ([7, 5], [2, 3], [1, 1], [[0, 1], [2, 0]]),
            ([9, 50], [5, 1], [3, 2], [[2, 2], [0, 0]]),
            ([7, 7], [7, 7], [1, 1], same(0)),
            // Adjacent windows.
            ([24, 24], [2, 2], [2, 2], same(0)),
            ([7, 5], [2, 2], [2, 2], same(0)),
            ([9, 4], [3, 1], [3, 1], same(0)),
            ([3, 17], [1, 4], [1, 4], same(0)),
            ([8, 8], [3, 3], [3, 3], same(0)),
        ] {
            let images = [2, 3, size[0], size[1]];
            let spans = Spans::new(images, kernel, stride, padding).expect("covered");
            let [_, _, rows, columns] = spans.output();
            // Few different values, so that windows have several largest ones.
            let x: Vec<f32> = noise(5, 6 * size[0] * size[1]).iter().map(|x| (x * 4.0).round()).collect();
            let gradient = noise(6, 6 * rows * columns);
            let (mut largest, mut means) = (Vec::new(), [Vec::new(), Vec::new()]);
            let [mut of_largest, mut of_positive] = [(); 2].map(|()| vec![0.0f32; x.len()]);
            let mut of_means = [vec![0.0; x.len()], vec![0.0; x.len()]];
            let area = kernel[0] * kernel[1];
            for at in 0..gradient.len() {
                let (plane, row, column) = (at / (rows * columns), at / columns % rows, at % columns);
                let places: Vec<usize> = (0..area)
                    .filter_map(|tap| {
                        let y = (row * stride[0] + tap / kernel[1]).checked_sub(padding[0][0])?;
                        let x = (column * stride[1] + tap % kernel[1]).checked_sub(padding[1][0])?;
                        (y < size[0] && x < size[1]).then_some((plane * size[0] + y) * size[1] + x)
                    })
                    .collect();
                let first = |best: usize, place: usize| if x[place] > x[best] { place } else { best };
                let place = places.iter().copied().reduce(first).expect("a window with a value");
                largest.push(x[place]);
                of_largest[place] += gradient[at];
                of_positive[place] += if x[place] > 0.0 { gradient[at] } else { 0.0 };
                for ((means, of_means), divisor) in
                    means.iter_mut().zip(&mut of_means).zip([places.len(), area])
                {
                    let sum: f64 = places.iter().map(|place| f64::from(x[*place])).sum();
                    means.push(sum / divisor as f64);
                    places
                        .iter()
                        .for_each(|place| of_means[*place] += f64::from(gradient[at]) / divisor as f64);
                }
            }
            let what = format!("{width}, {kernel:?} of {size:?}");
            let (pooled, taken) = spans.max(&x);
            assert!(pooled == largest && spans.max_gradient(&gradient, &taken) == of_largest, "{what}");
            for (at, spans) in [spans.clone(), spans.divided_by(area)].iter().enumerate() {
                assert_close(&spans.mean(&x), &means[at], &what);
                assert_close(&spans.mean_gradient(&gradient), &of_means[at], &what);
            }
            if (stride, padding) == (kernel, same(0)) {
                let windows = Windows::new(images, kernel).expect("covered");
                let (pooled, taken) = pool::forward(&x, &windows);
                let positive: Vec<f32> = largest.iter().map(|x| x.max(0.0)).collect();
                assert!(pooled == positive, "{what}");
                assert!(pool::backward(&gradient, &taken, &windows) == of_positive, "{what}");
            }
        }
    });
}

/// Bit-identical: the same sums in the same order.
#[test]
fn fused_pooling_equals_separate_pooling() {
    let cases = [
        ([3, 16, 26, 26], [33, 16, 3, 3], [0, 0]),
        ([9, 29, 7, 10], [18, 29, 3, 3], [1, 2]),
        ([1, 33, 8, 45], [16, 33, 3, 3], [2, 1]),
        ([2, 16, 5, 5], [32, 16, 3, 3], [0, 0]),
        ([2, 3, 9, 8], [4, 3, 2, 3], [1, 1]),
    ];
    everywhere(|width| {
        for (image, weight, padding) in cases {
            let shape =
                Shape::new(image, weight, padding.map(|zeros| [zeros; 2]), [1, 1], [1, 1]).expect("covered");
            let windows = Windows::new(shape.outputs(), [2, 2]).expect("covered");
            let (x, w) = (noise(1, image.iter().product()), noise(2, weight.iter().product()));
            let (bias, gradient) = (noise(3, weight[0]), noise(4, windows.output().iter().product()));
            let what = format!("{width}, {image:?} with {weight:?}");

            let (values, taken) = pool::forward(&shape.forward(&x, &w, &bias, false), &windows);
            let (ours, our_taken) = shape.forward_pooled(&x, &w, &bias);
            assert!(ours == values && our_taken == taken, "{what}");
            let spread = pool::backward(&gradient, &taken, &windows);
            let whole = Gradient::from(&spread[..]);
            let pooled = Gradient::Pooled(Pooled { values: &gradient, taken: &taken });
            assert!(shape.gradients(&x, pooled) == shape.gradients(&x, whole), "{what}");
            let [ours, wanted] = [pooled, whole].map(|from| shape.input_gradient(&w, from));
            assert!(ours == wanted, "{what}");
        }
    });
}

#[test]
fn sgd_equals_separate_operations_to_the_bit() {
    let len = 1003;
    everywhere(|what| {
        for (nesterov, weight_decay) in [(false, 0.0), (true, 0.0), (false, 5e-4), (true, 5e-4)] {
            let sgd = Sgd { rate: 0.05, momentum: 0.9, dampening: 0.0, nesterov, weight_decay };
            let [before, moved, gradient] = [1, 2, 3].map(|seed| noise(seed, len));
            let mut velocity = moved.clone();
            let parameter = sgd.step(&before, &mut velocity, &gradient);
            for at in 0..len {
                let decay = before[at] * weight_decay;
                let gradient = if weight_decay == 0.0 { gradient[at] } else { decay + gradient[at] };
                let kept = moved[at] * 0.9;
                let wanted = gradient + kept;
                let next = wanted * 0.9;
                let along = if nesterov { next + gradient } else { wanted };
                let delta = along * 0.05;
                assert_eq!(velocity[at], wanted, "{what}, {sgd:?}, velocity {at}");
                assert_eq!(parameter[at], before[at] - delta, "{what}, {sgd:?}, parameter {at}");
            }
        }
    });
}

#[test]
fn sgd_is_bit_identical_for_every_number_of_threads() {
    let len = 100_001;
    same_for_every_number_of_threads(|| {
        let sgd = Sgd { rate: 0.1, momentum: 0.9, dampening: 0.0, nesterov: true, weight_decay: 1e-3 };
        let mut velocity = noise(5, len);
        (sgd.step(&noise(4, len), &mut velocity, &noise(6, len)), velocity)
    });
}
