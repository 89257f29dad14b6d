//! Fine-tuning: weights of torchvision, a frozen body and its learning rate.

use crate::model::{ResNet, ResNetConfig};
use anyhow::{Context as _, Result, bail};
use burn::module::ParamGroup;
use burn_ddp::{
    Context, Trainer,
    context::values::rate,
    data::Channels,
    run::weights::{self, Loaded},
};
use clap::Args;
use std::path::PathBuf;

/// Number of tensors that an error lists.
const LISTED: usize = 5;

/// Flags of fine-tuning.
#[derive(Args, Clone, Debug)]
#[command(about = None, long_about = None, next_help_heading = "Model")]
pub struct PretrainedArgs {
    /// Pretrained weights: a state dict of torchvision, ending in .pth or .safetensors
    #[arg(long, value_name = "FILE", conflicts_with = "init_from")]
    pub weights: Option<PathBuf>,
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

impl PretrainedArgs {
    /// Checks the flags for `network`.
    ///
    /// # Errors
    /// If flags exclude each other, or the file does not exist.
    pub fn check(&self, network: &ResNetConfig) -> Result<()> {
        let small = network.network.is_small();
        if !small && network.channels != 3 {
            bail!("--colours grey: torchvision's networks have three channels; use --colours rgb");
        }
        if !small && network.blocks != 1 {
            bail!("--blocks {}: only the small network has a choice of blocks", network.blocks);
        }
        match &self.weights {
            Some(_) if small => {
                bail!(
                    "--weights needs --network resnet18, resnet34 or resnet50; the small network has --init-from"
                )
            }
            Some(file) => weights::find(file).map(drop).context("--weights"),
            None => Ok(()),
        }
    }

    // ANCHOR: fine_tuning
    /// Records the settings, and sets the learning rates of the groups.
    pub fn applied<'a>(&self, mut trainer: Trainer<'a, ResNet>) -> Trainer<'a, ResNet> {
        if let Some(file) = &self.weights {
            trainer = trainer.note("weights", file);
        }
        // Runs without these flags resume checkpoints of earlier versions.
        if self.freeze_body {
            trainer = trainer.must_match("freeze-body", true);
        }
        let Some(factor) = self.body_lr else { return trainer };
        let head = ParamGroup::from_predicate("fc.");
        trainer.must_match("body-lr", factor).lr_group(ParamGroup::all(), factor).lr_group(head, 1.0)
    }

    /// Loads the weights on rank 0, and freezes the body.
    ///
    /// # Errors
    /// If a tensor is missing, unused or has another shape, except for a last layer of another number of classes.
    pub fn prepared(&self, mut net: ResNet, context: &Context) -> Result<ResNet> {
        if let Some(file) = self.weights.as_ref().filter(|_| context.is_main()) {
            let Loaded { model, mut mismatches, .. } = weights::load(net, file).context("--weights")?;
            let other_shape = |what: &String, name| what.starts_with(&format!("`fc.{name}` has the shape"));
            let is_new = mismatches.iter().any(|what| other_shape(what, "bias"));
            mismatches.retain(|what| !is_new || !other_shape(what, "bias") && !other_shape(what, "weight"));
            if let Some(more) = mismatches.len().checked_sub(LISTED).filter(|more| *more > 0) {
                mismatches.truncate(LISTED);
                mismatches.push(format!("and {more} more"));
            }
            if !mismatches.is_empty() {
                bail!("--weights {} does not fit --network: {}", file.display(), mismatches.join("; "));
            }
            if is_new {
                let new = "weights   the last layer, fc, is new: the file has another number of classes";
                context.console().print(new);
            }
            net = model;
        }
        Ok(if self.freeze_body { net.with_frozen_body() } else { net })
    }
    // ANCHOR_END: fine_tuning
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Network;
    use burn::tensor::{Device, Tensor};
    use serde::Deserialize;
    use std::{env, fs, path::Path};

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
