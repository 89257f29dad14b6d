//! Files and variables of a user, in any state: reading them ends with a result or an error and never with a panic.
//!
//! Each function belongs to a fuzz target. The tests of the library run them on the seeds, which include inputs that
//! fuzzing has found.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    tensor::Device,
};
use burn_ddp::{
    config::{TrainerArgs, config_file},
    data::{GreyImages, Picture},
    launch::Environment,
    run::{
        checkpoint::{CheckpointStore, FORMAT, Manifest},
        report, weights,
    },
};
use clap::Parser;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Checks an input. It may write files to the folder, which the next input reuses.
pub type Property = fn(&Path, &[u8]);

/// All properties by the names of their targets.
pub const ALL: [(&str, Property); 7] = [
    ("config", config),
    ("environment", environment),
    ("idx", idx),
    ("manifest", manifest),
    ("pictures", pictures),
    ("run", run),
    ("weights", weights),
];

/// The bytes in parts, which are separated by lines of `%`.
fn parts(bytes: &[u8]) -> Vec<&[u8]> {
    let mut parts = vec![bytes];
    while let Some(rest) = parts.pop() {
        match rest.windows(3).position(|window| window == b"\n%\n") {
            Some(place) => parts.extend([&rest[..place], &rest[place + 3..]]),
            None => {
                parts.push(rest);
                break;
            }
        }
    }
    parts
}

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    trainer: TrainerArgs,
}

/// A file of `--config`, in TOML or as `config.json`.
pub fn config(folder: &Path, bytes: &[u8]) {
    for name in ["config.toml", "config.json"] {
        let path = folder.join(name);
        fs::write(&path, bytes).expect("a file");
        let args = ["program".into(), "--config".into(), path.into_os_string()];
        if let Ok(Ok(Program { trainer })) = config_file::parse_from(args.into(), None) {
            assert!(format!("{trainer:?}").contains("epochs"));
        }
    }
}

/// Variables of launchers, one per line: `NAME=VALUE`.
pub fn environment(_: &Path, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let value = |name: &str| {
        let values = text.lines().filter_map(|line| line.split_once('='));
        values.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
    };
    if let Ok(Some(environment)) = Environment::from_lookup(value) {
        assert!(environment.rank < environment.world_size);
        assert!(environment.local_rank < environment.local_world_size);
        assert!(environment.local_world_size <= environment.world_size);
    }
}

/// Images and labels of MNIST's format.
pub fn idx(_: &Path, bytes: &[u8]) {
    let parts = parts(bytes);
    let labels = parts.get(1).copied().unwrap_or_default();
    let [one, other] = ["images", "labels"].map(PathBuf::from);
    if let Ok(images) = GreyImages::from_idx((&one, parts[0]), (&other, labels), 3, 10) {
        (0..images.len()).for_each(|index| assert_eq!(images.image(index).len(), 9));
    }
}

/// The manifest of a checkpoint, whose checksum is right, and its record `model`.
pub fn manifest(folder: &Path, bytes: &[u8]) {
    let parts = parts(bytes);
    let checkpoint = folder.join("checkpoints/step-1");
    fs::create_dir_all(&checkpoint).expect("a folder");
    let contents = match serde_json::from_slice::<Value>(parts[0]) {
        Ok(manifest) => {
            let packed = serde_json::to_vec(&manifest).expect("a value");
            let crc32 = crc32fast::hash(&packed);
            json!({ "format": FORMAT, "crc32": crc32, "manifest": manifest }).to_string().into_bytes()
        }
        Err(_) => parts[0].to_vec(),
    };
    fs::write(checkpoint.join("manifest.json"), contents).expect("a file");
    fs::write(checkpoint.join("model.bpk"), parts.get(1).copied().unwrap_or_default()).expect("a file");
    for (_, path) in CheckpointStore::in_run(folder).list().expect("a folder") {
        if let Ok(manifest) = Manifest::read(&path) {
            let _ = manifest.load(&path);
        }
    }
}

/// A PNG or JPEG file.
pub fn pictures(_: &Path, bytes: &[u8]) {
    for channels in [1, 3] {
        if let Ok(picture) = Picture::decode(bytes, channels) {
            assert_eq!(picture.pixels.len(), picture.width * picture.height * channels);
            let _ = picture.square(5);
        }
    }
}

/// The files of a run that its report reads.
pub fn run(folder: &Path, bytes: &[u8]) {
    let names = [
        "config.json",
        "summary.json",
        "steps.csv",
        "epochs.csv",
        "ranks.csv",
        "confusion_matrix.csv",
        "misclassified.csv",
    ];
    let parts = parts(bytes);
    for (at, name) in names.into_iter().enumerate() {
        let path = folder.join(name);
        match parts.get(at) {
            Some(contents) => fs::write(path, contents).expect("a file"),
            None => drop(fs::remove_file(path)),
        }
    }
    let _ = report::write(folder);
}

#[derive(Module, Debug)]
struct Net {
    fc1: Linear,
    fc2: Linear,
}

/// Weights: the first byte chooses the format.
pub fn weights(folder: &Path, bytes: &[u8]) {
    let Some((format, contents)) = bytes.split_first() else { return };
    let ending = ["safetensors", "bpk", "pt"][usize::from(format % 3)];
    let path = folder.join(format!("model.{ending}"));
    fs::write(&path, contents).expect("a file");
    let device = Device::flex();
    let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init(&device);
    let net = Net { fc1: layer(2, 3), fc2: layer(3, 1) };
    let _ = weights::open(net, &path);
}
