//! Weights in 16 and 64 bits, in files written by torch and safetensors (`float_types/make.py`).

use super::{common::trained, mnist_ddp, weights::header_and_data};
use flate2::read::GzDecoder;
use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

const FILES: [&str; 9] = [
    "f32.pt",
    "f32.safetensors",
    "f16.pt",
    "f16.safetensors",
    "f16_legacy.pt",
    "bf16.pt",
    "bf16.safetensors",
    "f64.pt",
    "f64.safetensors",
];

/// Unpacks the fixtures into `folder`.
fn unpacked(folder: &Path) -> Vec<PathBuf> {
    let fixtures =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/library/pictures_and_weights/float_types");
    let unpack = |name: &&str| {
        let packed = fs::File::open(fixtures.join(format!("{name}.gz"))).expect("a fixture");
        let mut bytes = Vec::new();
        GzDecoder::new(packed).read_to_end(&mut bytes).expect("a whole fixture");
        let path = folder.join(name);
        fs::write(&path, bytes).expect("written");
        path
    };
    FILES.iter().map(unpack).collect()
}

#[test]
fn every_type_trains_from_the_same_weights() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let flags = "--dataset subset --train-limit 32 --eval-limit 10 --batch-size 8 --dropout 0";
    // Two ranks train, of which rank 0 reads the file. Without learning the weights do not change.
    let digests = |flags: &str| -> Vec<String> {
        let digest = |path: &PathBuf| trained(&format!("{flags} --weights {}", path.display())).digest();
        unpacked(folder.path()).iter().map(digest).collect()
    };
    let kept = digests(&format!("{flags} --mode single --max-steps 1 --lr 0 --momentum 0"));
    let learned = digests(&format!("{flags} --nproc-per-node 2 --max-steps 2"));
    for (name, (kept_digest, learned_digest)) in FILES.iter().zip(kept.iter().zip(&learned)) {
        assert_eq!(*kept_digest, kept[0], "{name}");
        assert_eq!(*learned_digest, learned[0], "{name}");
    }
    assert_ne!(kept[0], learned[0]);
}

/// The tensors of a safetensors file with names, types and offsets, and their bytes.
///
/// The order of the header's other entries is not fixed.
fn tensors(path: &Path) -> (serde_json::Value, Vec<u8>) {
    let (header, data) = header_and_data(path);
    (serde_json::from_str(&header).expect("JSON"), data)
}

#[test]
fn every_type_is_exported_and_gives_equal_predictions() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let picture = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/library/pictures_and_weights/turned.jpg")
        .display()
        .to_string();
    let results: Vec<_> = (unpacked(folder.path()).iter())
        .map(|path| {
            let (from, to) = (path.display().to_string(), folder.path().join("out.safetensors"));
            let _ = fs::remove_file(&to);
            mnist_ddp(&["weights", "export", &from, &to.display().to_string()]).succeeded();
            let answer = mnist_ddp(&["predict", "--model", &from, &picture]).succeeded().stdout;
            (tensors(&to), answer)
        })
        .collect();
    for (name, (exported, answer)) in FILES.iter().zip(&results) {
        assert_eq!(*answer, results[0].1, "{name}");
        assert!(*exported == results[0].0, "{name} is exported as other bytes than {}", FILES[0]);
    }
}
