//! Memory between forward and backward: layers of `nn` keep at most as much as Burn's.
//!
//! A program of its own, because its allocator counts the bytes of all threads.

use burn::nn as burns;
use burn::tensor::{Device, Distribution, Int, Tensor};
use burn_ddp_kernels::nn as ours;
use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicIsize, Ordering::Relaxed},
};

static ALLOCATED: AtomicIsize = AtomicIsize::new(0);

/// The system's allocator, which counts bytes.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: the system's allocator gets every call.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as isize, Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size() as isize, Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn device() -> Device {
    Device::flex().autodiff()
}

/// Bytes of a layer's output and its graph.
///
/// The input is the result of an operation that saves no tensor, so that it is freed unless the layer saves it.
fn kept<M, T, const D: usize>(layer: M, shape: [usize; D], forward: impl Fn(&M, Tensor<D>) -> T) -> isize {
    let leaf = Tensor::random(shape, Distribution::Normal(0.0, 1.0), &device()).require_grad();
    let measure = |_| {
        let before = ALLOCATED.load(Relaxed);
        let output = forward(&layer, leaf.clone().mul_scalar(1.5));
        let kept = ALLOCATED.load(Relaxed) - before;
        drop(output);
        kept
    };
    // Buffers of threads are allocated by the first one.
    (0..4).map(measure).min().expect("measurements")
}

/// Name, bytes here and bytes in Burn of a layer with these settings.
macro_rules! bytes {
    ($config:ident $(of $part:ident)?, ($($setting:expr),*) $(.$with:ident($value:expr))*, $shape:expr, $forward:expr) => {
        bytes!($config $(of $part)?, ($($setting),*) $(.$with($value))*, $shape, $forward, $forward)
    };
    ($config:ident $(of $part:ident)?, ($($setting:expr),*) $(.$with:ident($value:expr))*, $shape:expr, $ours:expr, $burns:expr) => {{
        let ours = ours::$($part::)?$config::new($($setting),*)$(.$with($value))*;
        let burns = burns::$($part::)?$config::new($($setting),*)$(.$with($value))*;
        (stringify!($config), kept(ours.init(&device()), $shape, $ours), kept(burns.init(&device()), $shape, $burns))
    }};
}

#[test]
fn layers_keep_no_more_than_those_of_burn() {
    let classes: Vec<i32> = (0..512).map(|i| i % 100).collect();
    let classes = Tensor::<1, Int>::from_data(&*classes, &device());
    let (pool, gelu) = (ours::pool::MaxPool2dConfig::new([2, 2]).with_strides([2, 2]), ours::Gelu::new());
    let (burns_pool, burns_gelu) =
        (burns::pool::MaxPool2dConfig::new([2, 2]).with_strides([2, 2]), burns::Gelu::new());
    let images = [8, 16, 28, 28];
    let table = [
        bytes!(LinearConfig, (256, 512), [128, 256], |m, x| m.forward(x)),
        bytes!(Conv1dConfig of conv, (16, 32, 3), [8, 16, 784], |m, x| m.forward(x)),
        bytes!(Conv2dConfig of conv, ([16, 32], [3, 3]), images, |m, x| m.forward(x)),
        bytes!(ConvTranspose2dConfig of conv, ([16, 32], [3, 3]).with_stride([2, 2]), images, |m, x| m.forward(x)),
        bytes!(LayerNormConfig, (256), [512, 256], |m, x| m.forward(x)),
        bytes!(RmsNormConfig, (256), [512, 256], |m, x| m.forward(x)),
        bytes!(GroupNormConfig, (4, 16), images, |m, x| m.forward(x)),
        (
            "Gelu",
            kept(gelu, [512, 256], |m, x| m.forward(x)),
            kept(burns_gelu, [512, 256], |m, x| m.forward(x)),
        ),
        (
            "MaxPool2d",
            kept(pool.init(), images, |m, x| m.forward(x)),
            kept(burns_pool.init(), images, |m, x| m.forward(x)),
        ),
        bytes!(LstmConfig, (28, 128, true), [32, 28, 28], |m, x| m.forward(x, None)),
        bytes!(GruConfig, (28, 128, true), [32, 28, 28], |m, x| m.forward(x, None)),
        bytes!(
            MultiHeadAttentionConfig of attention,
            (128, 4).with_dropout(0.0),
            [8, 64, 128],
            |m, x| m.forward(ours::attention::MhaInput::self_attn(x)).context,
            |m, x| m.forward(burns::attention::MhaInput::self_attn(x)).context
        ),
        bytes!(
            TransformerEncoderConfig of transformer,
            (128, 512, 4, 1).with_dropout(0.1),
            [8, 64, 128],
            |m, x| m.forward(ours::transformer::TransformerEncoderInput::new(x)),
            |m, x| m.forward(burns::transformer::TransformerEncoderInput::new(x))
        ),
        bytes!(CrossEntropyLossConfig of loss, (), [512, 100], |m, x| m.forward(x, classes.clone())),
    ];
    println!("{:26} {:>10} {:>10}", "layer", "ours", "Burn's");
    for (layer, ours, burns) in table {
        println!("{layer:26} {ours:10} {burns:10}");
    }
    for (layer, ours, burns) in table {
        // Nodes of the graph and indices of classes differ in size.
        assert!(ours <= burns + burns / 50, "{layer} keeps {ours} bytes, Burn's {burns}");
    }
}
