//! What the tests of the kernels share, and tests of shapes.

use crate::{
    adam::{Adam, Decay},
    conv::Shape,
    pool::{Spans, Windows},
    sgd::Sgd,
    simd::PRETEND,
};
#[cfg(feature = "burn")]
use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Gradients, Tensor},
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
pub fn read<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().expect("f32")
}

/// Output and gradient of `x`, and all gradients.
#[cfg(feature = "burn")]
pub fn run<const A: usize, const B: usize>(
    x: &Tensor<A>,
    forward: impl FnOnce(Tensor<A>) -> Tensor<B>,
) -> (Vec<Vec<f32>>, Gradients) {
    let x = x.clone().require_grad();
    let output = forward(x.clone());
    // A different gradient for every value.
    let gradients = (output.clone() * output.clone().detach().sin()).sum().backward();
    ([read(output)].into_iter().chain(x.grad(&gradients).map(read)).collect(), gradients)
}

/// Output and gradients of the input and all parameters.
#[cfg(feature = "burn")]
pub fn results<M: Module, const A: usize, const B: usize>(
    module: &M,
    x: &Tensor<A>,
    forward: impl Fn(&M, Tensor<A>) -> Tensor<B>,
) -> Vec<Vec<f32>> {
    struct Collect<'a>(&'a Gradients, Vec<Vec<f32>>);
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.1.extend(param.val().grad(self.0).map(read));
        }
    }
    let (results, gradients) = run(x, |x| forward(module, x));
    let mut collect = Collect(&gradients, results);
    module.visit(&mut collect);
    collect.1
}

pub fn assert_close(ours: &[f32], wanted: &[impl Into<f64> + Copy], what: &str) {
    assert_eq!(ours.len(), wanted.len(), "{what}");
    let wanted = wanted.iter().map(|value| (*value).into());
    let scale = wanted.clone().fold(1.0f64, |most, value| most.max(value.abs()));
    for (at, (ours, wanted)) in ours.iter().zip(wanted).enumerate() {
        assert!((f64::from(*ours) - wanted).abs() <= 1e-5 * scale, "{what}: {ours} is not {wanted} at {at}");
    }
}

/// Whether a convolution of stride 1 uses the algorithms for equal padding on both sides.
fn is_plain(image: [usize; 4], weight: [usize; 4], padding: [usize; 2], dilation: [usize; 2]) -> bool {
    let shape = Shape::new(image, weight, padding.map(|zeros| [zeros; 2]), [1, 1], dilation);
    shape.is_some_and(|shape| shape.is_plain())
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
fn steps_of_optimizers_are_bit_identical_for_every_number_of_threads() {
    let len = 100_001;
    same_for_every_number_of_threads(|| {
        let (parameter, gradient) = (noise(4, len), noise(6, len));
        let sgd = Sgd { rate: 0.1, momentum: 0.9, dampening: 0.0, nesterov: true, weight_decay: 1e-3 };
        let mut velocity = noise(5, len);
        let moved = sgd.step(&parameter, &mut velocity, &gradient);
        let adam =
            Adam { rate: 0.1, betas: [0.9, 0.99], epsilon: 1e-8, decay: Decay::Parameter(0.9), time: 2 };
        let (mut first, mut second) =
            (noise(7, len), noise(8, len).iter().map(|x| x * x).collect::<Vec<_>>());
        let adapted = adam.step(&parameter, [&mut first, &mut second], &gradient);
        [moved, velocity, adapted, first, second]
    });
}
