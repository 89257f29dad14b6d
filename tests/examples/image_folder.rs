//! The picture example: ResNets and batches of pictures.

use burn::data::dataloader::batcher::Batcher;
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use burn_ddp::{
    data::{Channels, Image, ImageFormat, Picture},
    run::weights,
};
use image_folder::{
    data::ImageBatcher,
    model::{Network, ResNetConfig},
};
use serde::Deserialize;
use std::{
    env, fs,
    path::{Path, PathBuf},
};

#[test]
fn channels_are_separated_and_normalised() {
    let picture = Picture { width: 1, height: 2, channels: 3, pixels: vec![0, 51, 255, 255, 0, 51] };
    let batcher = ImageBatcher {
        format: ImageFormat { side: 1, channels: 3 },
        normalisation: Channels { mean: vec![0.0, 0.2, 0.5], std: vec![1.0, 0.5, 0.25] },
    };
    // One side of two pixels: the batcher takes the side from the format.
    let square = Picture { height: 1, pixels: picture.pixels[..3].to_vec(), ..picture };
    let images = vec![Image { picture: square, label: 4, index: 0 }];
    let (pictures, labels) = batcher.batch(images, &Device::flex());
    assert_eq!(pictures.dims(), [1, 3, 1, 1]);
    assert_eq!(pictures.into_data().try_to_vec::<f32>().expect("f32"), [0.0, 0.0, 2.0]);
    assert_eq!(labels.into_data().convert::<i64>().try_to_vec::<i64>().expect("i64"), [4]);
}

#[test]
fn resnet_20_has_the_published_number_of_parameters() {
    let device = Device::flex();
    // 0.27 million in table 6 of the paper; 272,474 with projections. Burn also counts the running statistics.
    let net = ResNetConfig { channels: 3, classes: 10, network: Network::Small, blocks: 3, width: 16 }
        .init(&device);
    let statistics = 2 * (16 + 6 * 16 + 7 * 32 + 7 * 64);
    assert_eq!(net.num_params(), 272_474 + statistics);
    let logits = net.forward(Tensor::zeros([2, 3, 33, 33], &device));
    assert_eq!(logits.dims(), [2, 10]);
}

/// torchvision gives 1.81 and 4.09 billion products.
#[test]
fn the_operations_of_forward_are_those_of_torchvision() {
    for (network, products) in [(Network::Resnet18, 1.81e9), (Network::Resnet50, 4.09e9)] {
        let config = ResNetConfig { channels: 3, classes: 1000, network, blocks: 0, width: 64 };
        let counted = config.init(&Device::flex()).flops(224) / 2.0;
        assert!((counted / products - 1.0).abs() < 0.005, "{network:?}: {counted}");
    }
}

/// Logits that `benches/peers/torchvision_resnet.py` has written beside a file of weights.
#[derive(Deserialize)]
struct Reference {
    network: Network,
    width: usize,
    side: usize,
    logits: [Vec<f32>; 2],
}

/// With the variable, files of another folder, such as networks of full width.
#[test]
fn logits_equal_those_of_torchvision() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("image_folder/fixtures");
    let folder = env::var_os("BURN_DDP_RESNET_FIXTURES").map_or(fixtures, PathBuf::from);
    let files = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut compared = 0;
    for path in files.filter(|path| path.extension().is_some_and(|ending| ending == "json")) {
        let Reference { network, width, side, logits } =
            serde_json::from_slice(&fs::read(&path).expect("a file")).expect("a reference");
        let config = ResNetConfig { channels: 3, classes: logits[0].len(), network, blocks: 1, width };
        let net = weights::open(config.init(&Device::flex()), &path.with_extension("")).expect("all tensors");
        let places = 0..2 * 3 * side * side;
        let pictures: Vec<f32> =
            places.map(|place| ((place * 7919 + place / 997) % 256) as f32 / 255.0 - 0.5).collect();
        let pictures = Tensor::<1>::from_floats(&pictures[..], &Device::flex()).reshape([2, 3, side, side]);
        let ours: Vec<f32> = net.forward(pictures).into_data().try_to_vec().expect("f32");
        let theirs = logits.concat();
        let largest = theirs.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
        let difference = ours.iter().zip(&theirs).fold(0.0, |most: f32, (a, b)| most.max((a - b).abs()));
        println!("{network:?} of width {width}: {:.1e} of the largest logit", difference / largest);
        assert!(ours.len() == theirs.len() && difference < 1e-5 * largest, "{}", path.display());
        compared += 1;
    }
    assert!(compared >= 2, "{compared} networks");
}
