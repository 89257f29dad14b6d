//! Fine-tuning: a frozen body and its learning rate.

use crate::model::ResNet;
use burn::module::ParamGroup;
use burn_ddp::{Trainer, context::values::rate, data::Channels};
use clap::Args;

/// Flags of fine-tuning.
#[derive(Args, Clone, Copy, Debug)]
#[command(about = None, long_about = None, next_help_heading = "Model")]
pub struct FineTuningArgs {
    /// Train the last layer only
    #[arg(long, conflicts_with = "body_lr")]
    pub freeze_body: bool,
    /// Learning rate of all layers but the last one, relative to --lr
    #[arg(long, value_name = "FACTOR", value_parser = rate)]
    pub body_lr: Option<f64>,
}

/// Mean and deviation of ImageNet's pictures, with which torchvision's networks are trained.
pub fn normalisation() -> Channels {
    Channels { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225] }
}

// ANCHOR: fine_tuning
impl FineTuningArgs {
    /// Records the settings, and sets the learning rates of the groups.
    pub fn applied<'a>(&self, trainer: Trainer<'a, ResNet>) -> Trainer<'a, ResNet> {
        // Not recorded without a flag, so that such runs resume checkpoints of earlier versions.
        match self.body_lr {
            _ if self.freeze_body => trainer.must_match("freeze-body", true),
            Some(factor) => trainer
                .must_match("body-lr", factor)
                .lr_group(ParamGroup::all(), factor)
                .lr_group(ParamGroup::from_predicate("fc."), 1.0),
            None => trainer,
        }
    }

    /// Freezes the body, with its running statistics.
    pub fn frozen(&self, net: ResNet) -> ResNet {
        if self.freeze_body { net.with_frozen_body() } else { net }
    }
}
// ANCHOR_END: fine_tuning

#[cfg(test)]
mod tests {
    use crate::model::{Network, ResNetConfig};
    use burn::tensor::{Device, Tensor};
    use burn_ddp::run::weights;
    use serde::Deserialize;
    use std::{
        env, fs,
        path::{Path, PathBuf},
    };

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
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
        let folder = env::var_os("BURN_DDP_RESNET_FIXTURES").map_or(fixtures, PathBuf::from);
        let files = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        let mut compared = 0;
        for path in files.filter(|path| path.extension().is_some_and(|ending| ending == "json")) {
            let Reference { network, width, side, logits } =
                serde_json::from_slice(&fs::read(&path).expect("a file")).expect("a reference");
            let config = ResNetConfig { channels: 3, classes: logits[0].len(), network, blocks: 1, width };
            let net =
                weights::open(config.init(&Device::flex()), &path.with_extension("")).expect("all tensors");
            let places = 0..2 * 3 * side * side;
            let pictures: Vec<f32> =
                places.map(|place| ((place * 7919 + place / 997) % 256) as f32 / 255.0 - 0.5).collect();
            let pictures =
                Tensor::<1>::from_floats(&pictures[..], &Device::flex()).reshape([2, 3, side, side]);
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
}
