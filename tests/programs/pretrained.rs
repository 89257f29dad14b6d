//! Fine-tuning in the picture example: weights of torchvision, a frozen body, learning rates, and files that do not fit.

use crate::{
    common::{Outcome, Run, assert_close, run_example},
    image_folder::{shapes, tensors},
};
use std::{fs, path::Path};

/// Weights of torchvision's ResNets of width 2 for 5 classes.
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/image_folder/fixtures");

/// Trains a network of width 2 for two steps on the shapes of `folder`.
fn run(folder: &Path, flags: &str) -> Outcome {
    let tiny = "--device cpu --progress plain --width 2 --scale-lr none --lr-schedule constant --epochs 1 \
        --max-steps 2 --batch-size 12";
    run_example("image_folder", &format!("{tiny} --data {}/shapes {flags}", folder.display()))
}

#[test]
fn a_frozen_body_and_its_rate_train_equally_on_one_and_two_ranks_and_in_16_bits() {
    let folder = shapes();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let pretrained = tensors(Path::new(&format!("{FIXTURES}/resnet50.safetensors")));
    let mut losses = Vec::new();
    let modes = ["--mode single", "--nproc-per-node 2 --batch-size 6", "--mode single --precision bf16"];
    for (number, mode) in modes.into_iter().enumerate() {
        let [first, second] = ["first", "second"].map(|name| file(&format!("{name}{number}")));
        let weights = format!("--network resnet50 {mode} --weights {FIXTURES}/resnet50.safetensors");
        let flags = format!("{weights} --freeze-body --run-dir {first} --export {first}.safetensors");
        let outcome = run(folder.path(), &flags).succeeded();
        assert!(outcome.stdout.contains("the layer `fc` is new"), "{outcome:#?}");
        let frozen = tensors(Path::new(&format!("{first}.safetensors")));
        for (name, tensor) in &frozen {
            assert_eq!(name.starts_with("fc."), *tensor != pretrained[name], "{name}");
        }
        let tune = format!("--network resnet50 {mode} --sync-bn --init-from {first} --body-lr 0.1");
        run(folder.path(), &format!("{tune} --run-dir {second} --export {second}.safetensors")).succeeded();
        let tuned = tensors(Path::new(&format!("{second}.safetensors")));
        for name in ["conv1.weight", "layer3.5.bn3.running_mean", "fc.weight"] {
            assert_ne!(tuned[name].1, frozen[name].1, "{name}");
        }
        losses.extend([first, second].map(|path| Run::at(path.into()).losses()));
    }
    assert_close("frozen", &losses[2], &losses[0], 1e-5);
    assert_close("frozen in 16 bits", &losses[4], &losses[0], 0.05);
    assert_close("with a rate of its own", &losses[3], &losses[1], 1e-3);
}

#[test]
fn a_last_layer_of_as_many_classes_is_loaded_and_a_rate_of_0_keeps_the_body() {
    let folder = shapes();
    fs::remove_dir_all(folder.path().join("shapes/ring")).expect("removed");
    let file = folder.path().join("same.safetensors");
    let weights = format!("--network resnet50 --mode single --weights {FIXTURES}/resnet50.safetensors");
    let outcome =
        run(folder.path(), &format!("{weights} --body-lr 0 --export {}", file.display())).succeeded();
    assert!(!outcome.stdout.contains("is new"), "{outcome:#?}");
    let (before, after) = (tensors(Path::new(&format!("{FIXTURES}/resnet50.safetensors"))), tensors(&file));
    assert_eq!(after["fc.weight"].0, before["fc.weight"].0);
    for (name, same) in [("fc.weight", false), ("layer4.2.conv3.weight", true), ("bn1.weight", true)] {
        assert_eq!(after[name].1 == before[name].1, same, "{name}");
    }
}

#[test]
fn weights_that_do_not_fit_are_errors_before_training() {
    let folder = shapes();
    let never = folder.path().join("never");
    let fails = |flags: &str, words: &[&str]| {
        let outcome = run(folder.path(), &format!("--mode single --run-dir {} {flags}", never.display()));
        assert!(outcome.stderr.lines().count() <= 2, "{outcome:#?}");
        outcome.failed_with(words);
        assert!(!never.exists(), "nothing was trained");
    };
    let (pth, safetensors) = (format!("{FIXTURES}/resnet18.pth"), format!("{FIXTURES}/resnet50.safetensors"));
    let other = ["does not fit the network", "`layer1.0.conv1.weight` has the shape", "; and 178 more"];
    fails(&format!("--network resnet18 --weights {safetensors}"), &other);
    fails(&format!("--network resnet50 --weights {pth}"), &other);

    // One name of the header is changed, in as many bytes.
    let mut bytes = fs::read(&safetensors).expect("a fixture");
    let at = bytes.windows(9).position(|part| part == b"\"fc.bias\"").expect("the bias");
    bytes[at + 1..at + 8].copy_from_slice(b"fc.bios");
    let renamed = folder.path().join("renamed.safetensors");
    fs::write(&renamed, bytes).expect("written");
    let words = ["`fc.bias` is missing from the file; `fc.bios` is not in the network"];
    fails(&format!("--network resnet50 --weights {}", renamed.display()), &words);
    for (whole, name) in [(&pth, "half.pth"), (&safetensors, "half.safetensors")] {
        let half = folder.path().join(name);
        let bytes = fs::read(whole).expect("a fixture");
        fs::write(&half, &bytes[..bytes.len() / 2]).expect("written");
        fails(&format!("--network resnet18 --weights {}", half.display()), &["--init-from", name]);
    }

    fails(&format!("--weights {pth}"), &["does not fit the network"]);
    fails("--network resnet18 --weights none.pth", &["none.pth: no such file"]);
    fails("--network resnet18 --colours grey", &["--colours rgb"]);
    fails("--network resnet34 --blocks 2", &["--blocks 2"]);
}
