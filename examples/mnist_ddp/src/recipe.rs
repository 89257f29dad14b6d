//! `--recipe`: presets of flags for an accuracy on MNIST.
//!
//! They precede all other flags, so that a configuration file and the command line override them.
//! `scripts/choose-recipe` selects them.

use clap::ValueEnum;
use serde::Serialize;

/// A named preset of flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Recipe {
    /// 99 % test accuracy in 1.2 epochs with two ranks
    Fast,
    /// 99 % test accuracy in one epoch with two ranks, with a smaller network
    Lenet,
    /// 99.55 % test accuracy in 30 epochs with two ranks
    Best,
}

/// Flags of all recipes.
const COMMON: [&str; 6] = [
    "--batch-size=32",
    "--lr-schedule=one-cycle:0.2",
    "--momentum=0.9",
    "--nesterov",
    "--weight-decay=0.0005",
    "--label-smoothing=0.05",
];

impl Recipe {
    /// The flags as on the command line.
    pub fn flags(self) -> impl Iterator<Item = &'static str> {
        let own: &[&str] = match self {
            Recipe::Fast => &["--epochs=1.2", "--lr=0.03", "--dropout=0"],
            Recipe::Lenet => &["--network=lenet", "--epochs=1", "--lr=0.05", "--dropout=0"],
            Recipe::Best => &[
                "--epochs=30",
                "--lr=0.05",
                "--batch-norm",
                "--dropout=0.2",
                "--augment=shift:2,rotate:10,zoom:10",
            ],
        };
        COMMON.iter().chain(own).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::MnistArgs;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        train: MnistArgs,
    }

    #[test]
    fn every_recipe_consists_of_valid_flags() {
        for recipe in Recipe::value_variants() {
            let line = ["program"].into_iter().chain(recipe.flags());
            let flags = Flags::try_parse_from(line).unwrap_or_else(|error| panic!("{recipe:?}: {error}"));
            assert!(flags.train.nesterov);
        }
    }
}
