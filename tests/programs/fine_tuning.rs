//! Frozen layers and groups of parameters, in every mode.

use crate::{
    common::assert_close,
    image_folder::tensors,
    metrics::{forecast, forecaster},
};
use std::path::Path;

const MODES: [&str; 3] = [
    "--mode single --batch-size 64",
    "--nproc-per-node 2 --batch-size 32",
    "--mode dp --device-ids cpu:0,cpu:1 --batch-size 64",
];

/// Trains in a mode from the weights of `first`; returns losses and weights.
fn tuned(folder: &Path, name: &str, flags: &str) -> (Vec<f64>, impl Fn(&str) -> Vec<u8> + use<>) {
    let first = folder.join("first.safetensors");
    let file = folder.join(format!("{name}.safetensors"));
    let files = format!("--init-from {} --export {}", first.display(), file.display());
    let flags = format!("--epochs 2 --lr 0.01 --scale-lr none {files} {flags}");
    let run = forecast(&flags);
    let tensors = tensors(&file);
    (run.losses(), move |name: &str| tensors[name].1.clone())
}

#[test]
fn frozen_layers_and_groups_with_other_rates_train_equally_in_every_mode() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = folder.path().join("first.safetensors");
    forecast(&format!("--export {}", file.display()));
    let first = tensors(&file);
    for (kind, flags) in
        [("frozen", "--freeze-hidden"), ("zero", "--hidden-lr 0"), ("slow", "--hidden-lr 0.1")]
    {
        let mut all = Vec::new();
        for (number, mode) in MODES.into_iter().enumerate() {
            let (losses, tensor) =
                tuned(folder.path(), &format!("{kind}{number}"), &format!("{mode} {flags}"));
            for name in ["hidden.weight", "hidden.bias"] {
                assert_eq!(tensor(name) == first[name].1, kind != "slow", "{kind} {mode} {name}");
            }
            assert_ne!(tensor("output.weight"), first["output.weight"].1, "{kind} {mode}");
            all.push(losses);
        }
        assert_close("processes", &all[1], &all[0], 1e-5);
        assert_close("devices", &all[2], &all[0], 1e-5);
    }
}

#[test]
fn a_run_with_groups_and_frozen_layers_resumes_with_the_same_bits() {
    for flags in ["--freeze-hidden", "--hidden-lr 0.1"] {
        let whole = forecast(&format!("{flags} --epochs 2"));
        let parts = forecast(&format!("{flags} --max-steps 5"));
        forecaster(&parts, &format!("{flags} --epochs 2 --resume")).succeeded();
        assert_eq!((parts.losses(), parts.digest()), (whole.losses(), whole.digest()), "{flags}");
        if flags == "--freeze-hidden" {
            let outcome = forecaster(&parts, "--epochs 3 --resume");
            outcome.failed_with(&["--freeze-hidden true, not false"]);
        }
    }
}
