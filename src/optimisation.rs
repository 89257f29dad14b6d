//! The flags about what training minimises and how: the learning rate's curve, the optimizer, and what
//! keeps the network from learning its images by heart.

use crate::{augment::Augment, cpu};
use anyhow::{Result, bail};
use burn::optim::ModuleOptimizer;
use clap::Args;
use collective::schedule::Curve;
use serde::{Serialize, Serializer};
use std::{fmt, str::FromStr};

#[derive(Args, Clone, Copy, Debug, Serialize)]
#[command(next_help_heading = "Training")]
pub struct OptimisationArgs {
    /// constant; one-cycle or one-cycle:PCT_START, which rises over that part of the run [0.3] and falls over
    /// the rest; or cosine, which falls all the way
    #[arg(long, default_value = "constant", value_name = "CURVE")]
    pub lr_schedule: Curve,
    /// Part of the rate at which the warm-up starts, as PyTorch's LinearLR has it [default: from --lr if
    /// --scale-lr raises the rate, otherwise 1/3]
    #[arg(long, value_name = "F", value_parser = start_factor)]
    pub warmup_start_factor: Option<f64>,
    /// Nesterov's momentum
    #[arg(long)]
    pub nesterov: bool,
    /// Weight decay (L2), of all parameters
    #[arg(long, default_value_t = 0.0, value_name = "DECAY", value_parser = crate::cli::rate)]
    pub weight_decay: f64,
    /// Part of each label that is shared out evenly over all classes, in training only
    #[arg(long, default_value_t = 0.0, value_name = "PART", value_parser = crate::cli::probability)]
    pub label_smoothing: f64,
    /// Change training images at random: none, or shift:PIXELS, rotate:DEGREES, zoom:PERCENT and
    /// elastic:PIXELS with commas between
    #[arg(long, default_value = "none", value_name = "HOW")]
    pub augment: Augment,
    /// Train on when the training loss is NaN or infinite
    #[arg(long)]
    pub allow_nan: bool,
}

impl OptimisationArgs {
    /// What is wrong with the flags together with these two.
    ///
    /// # Errors
    /// If one would have no meaning.
    pub fn check(&self, momentum: f64, warmup_epochs: f64) -> Result<()> {
        if self.nesterov && momentum == 0.0 {
            bail!("--nesterov needs a --momentum above 0");
        }
        match self.lr_schedule {
            Curve::OneCycle { .. } if warmup_epochs > 0.0 => bail!(
                "--warmup-epochs {warmup_epochs}: --lr-schedule one-cycle has a rise of its own; give its length as one-cycle:PCT_START"
            ),
            Curve::OneCycle { .. } | Curve::Constant | Curve::Cosine => {}
        }
        if self.warmup_start_factor.is_some() && warmup_epochs == 0.0 {
            bail!("--warmup-start-factor needs --warmup-epochs above 0");
        }
        Ok(())
    }

    /// The optimizer: PyTorch's SGD, without dampening.
    pub fn sgd(&self, momentum: f64) -> ModuleOptimizer {
        sgd(momentum, self.nesterov, self.weight_decay)
    }
}

/// As PyTorch's `LinearLR` accepts it.
fn start_factor(text: &str) -> Result<f64, String> {
    crate::cli::bounded(text, "a number above 0 and at most 1", |factor| factor > 0.0 && factor <= 1.0)
}

/// SGD as PyTorch has it, with a momentum that is not dampened.
pub fn sgd(momentum: f64, nesterov: bool, weight_decay: f64) -> ModuleOptimizer {
    cpu::Sgd { momentum, nesterov, weight_decay }.into()
}

/// `--epochs`: a number of them, perhaps with a part of one more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Epochs(f64);

impl Epochs {
    /// With the last one, though it be only begun.
    pub fn begun(self) -> usize {
        self.0.ceil() as usize
    }

    /// Optimizer steps to train for, where an epoch has `epoch_steps`; at least one.
    pub fn steps(self, epoch_steps: usize) -> usize {
        ((self.0 * epoch_steps as f64).round() as usize).max(1)
    }

    /// Whether the last epoch is not to be finished.
    pub fn is_fraction(self) -> bool {
        self.0.fract() != 0.0
    }
}

impl FromStr for Epochs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let what = "a number above 0, such as 3 or 0.5";
        crate::cli::bounded(text, what, |epochs| epochs > 0.0 && epochs <= 1e9).map(Epochs)
    }
}

impl fmt::Display for Epochs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Epochs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.is_fraction() {
            serializer.serialize_f64(self.0)
        } else {
            serializer.serialize_u64(self.0 as u64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NetConfig;
    use burn::module::{Module, Param};
    use burn::optim::GradientsParams;
    use burn::tensor::{Device, Int, Tensor};

    fn assert_close(ours: &Tensor<1>, theirs: &[f32]) {
        let ours: Vec<f32> = ours.to_data().try_to_vec().expect("f32");
        assert!(ours.iter().zip(theirs).all(|(a, b)| (a - b).abs() < 1e-6), "{ours:?} against {theirs:?}");
    }

    #[derive(Module, Debug)]
    struct Cube {
        weight: Param<Tensor<1>>,
    }

    /// Printed by torch 2.15's `SGD([w], lr=0.1, momentum=0.9, nesterov=…, weight_decay=0.01)` minimising
    /// the sum of w³ from w = [1, −0.5].
    #[test]
    fn the_optimizer_is_pytorchs() {
        let device = Device::flex().autodiff();
        for (nesterov, wanted) in [
            (true, [[0.4281, -0.641_55], [0.079_012_97, -0.935_280_3], [-0.189_005_96, -1.585_916_8]]),
            (false, [[0.699, -0.5745], [0.280_820_73, -0.739_990_6], [-0.119_479_545, -1.052_468]]),
        ] {
            let args = OptimisationArgs {
                lr_schedule: Curve::Constant,
                warmup_start_factor: None,
                nesterov,
                weight_decay: 0.01,
                label_smoothing: 0.0,
                augment: Augment::default(),
                allow_nan: false,
            };
            let mut cube = Cube { weight: Param::from_tensor(Tensor::from_floats([1.0, -0.5], &device)) };
            let mut sgd = args.sgd(0.9);
            for wanted in wanted {
                let loss = cube.weight.val().powi_scalar(3).sum();
                let gradients = GradientsParams::from_grads(loss.backward(), &cube);
                cube = sgd.step(0.1, cube, gradients);
                assert_close(&cube.weight.val(), &wanted);
            }
        }
    }

    /// As torch 2.15's `cross_entropy(logits, labels, label_smoothing=0.1)`, and without.
    #[test]
    fn label_smoothing_is_pytorchs() {
        let device = Device::flex();
        let logits = [
            [1.0, 2.0, 0.0, -1.0, 0.5, 3.0, 0.0, 0.0, 1.0, -2.0],
            [0.0, 0.0, 0.0, 4.0, 0.0, 1.0, -1.0, 2.0, 0.0, 0.5],
        ];
        let (logits, labels) =
            (Tensor::<2>::from_floats(logits, &device), Tensor::<1, Int>::from_ints([1, 3], &device));
        for (smoothing, loss) in [(0.1, 1.201_021_9), (0.0, 0.956_021_9)] {
            let net = NetConfig { batch_norm: false, dropout: [0.0; 2] }.init(&device);
            let net = net.with_label_smoothing(smoothing);
            assert_close(&net.judge(logits.clone(), labels.clone()).0, &[loss]);
        }
    }

    #[test]
    fn epochs_are_whole_or_in_part() {
        let epochs = |text: &str| text.parse::<Epochs>();
        let half = epochs("2.5").expect("good");
        assert_eq!((half.begun(), half.steps(11), half.is_fraction()), (3, 28, true));
        let whole = epochs("3").expect("good");
        assert_eq!((whole.begun(), whole.steps(11), whole.is_fraction()), (3, 33, false));
        assert_eq!(serde_json::json!([half, whole]).to_string(), "[2.5,3]");
        assert_eq!(epochs("0.001").expect("good").steps(10), 1);
        for bad in ["0", "-1", "NaN", "inf", "two", ""] {
            assert!(epochs(bad).is_err(), "{bad}");
        }
    }
}
