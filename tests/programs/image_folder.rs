//! The picture example: world sizes, resume, corrupt pictures, transfer, uneven classes, and weights for PyTorch.

use crate::common::{Outcome, Run, assert_close, command, finish, run_example};
use std::{collections::BTreeMap, fs, path::Path};
use tempfile::TempDir;

/// A network of 8 layers that trains in a second.
const TINY: &str =
    "--device cpu --progress plain --side 8 --colours grey --width 4 --scale-lr none --lr-schedule constant";

/// A folder with 6 classes of 8 drawn shapes in `shapes`: 36 pictures to train on and 12 for the test.
pub fn shapes() -> TempDir {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("shapes");
    run_example("image_folder", &format!("shapes {} --count 8", path.display())).succeeded();
    folder
}

fn run(data: &Path, flags: &str) -> Outcome {
    run_example("image_folder", &format!("{TINY} --data {} {flags}", data.display()))
}

/// Trains on the shapes of `folder`.
fn train(folder: &TempDir, flags: &str) -> (Run, Outcome) {
    let trained = Run::new();
    let flags = format!("--run-dir {} {flags}", trained.path.display());
    (trained, run(&folder.path().join("shapes"), &flags))
}

#[test]
fn every_world_size_follows_the_same_trajectory() {
    let folder = shapes();
    // Without synchronised BatchNorm, each rank would normalise by its own part.
    let losses = |flags: &str| {
        let (run, outcome) = train(&folder, &format!("--sync-bn --lr 0.1 --epochs 5 --augment none {flags}"));
        let outcome = outcome.succeeded();
        assert!(outcome.stdout.contains("top-5 accuracy "), "{outcome:#?}");
        let matrix = fs::read_to_string(run.path.join("confusion_matrix.csv")).expect("a matrix");
        let counts = matrix.lines().skip(1).flat_map(|row| row.split(',').skip(1));
        assert_eq!(counts.map(|count| count.parse::<u32>().expect("a count")).sum::<u32>(), 12, "{matrix}");
        run.losses()
    };
    let one = losses("--mode single --batch-size 12");
    assert!(one.len() == 15 && one[14] < one[0] - 0.3, "it learns: {one:?}");
    assert_close("2 ranks", &losses("--nproc-per-node 2 --batch-size 6"), &one, 2e-4);
    assert_close("4 ranks", &losses("--nproc-per-node 4 --batch-size 3"), &one, 2e-4);
    let dp = "--mode dp --device-ids cpu:0,cpu:1 --batch-size 12";
    assert_close("dp", &losses(dp), &one, 2e-4);
}

#[test]
fn a_resumed_run_is_bit_identical_to_an_uninterrupted_one() {
    let folder = shapes();
    for flags in ["--nproc-per-node 2 --batch-size 4", "--mode single --batch-size 8 --balance-classes"] {
        let flags = format!("{flags} --epochs 2 --save-every 3 --keep-last 9 --valid-split 0.2");
        let (whole, outcome) = train(&folder, &flags);
        outcome.succeeded();
        // The checkpoint is in the middle of the first epoch.
        let (half, outcome) = train(&folder, &format!("{flags} --max-steps 3"));
        outcome.succeeded();
        let resumed = format!("{TINY} --data {}/shapes {flags}", folder.path().display());
        let from = half.path.join("checkpoints/step-000003");
        let outcome =
            run_example("image_folder", &format!("{resumed} --resume {}", from.display())).succeeded();
        assert!(outcome.stdout.contains("after step 3"), "{outcome:#?}");
        assert_eq!((half.digest(), half.losses()), (whole.digest(), whole.losses()));
    }
}

#[test]
fn both_half_types_train_a_model_without_code_for_them() {
    let folder = shapes();
    let flags = "--batch-size 12 --lr 0.02 --epochs 2 --sync-bn";
    let exact = train(&folder, &format!("--mode single {flags}")).0.losses();
    for precision in ["bf16", "f16"] {
        for (name, mode) in [("single", "--mode single"), ("dp", "--mode dp --device-ids cpu:0,cpu:1")] {
            let (run, outcome) = train(&folder, &format!("{mode} {flags} --precision {precision}"));
            outcome.succeeded();
            let losses = run.losses();
            assert_close(&format!("{precision} {name}"), &losses[..1], &exact[..1], 0.05);
            assert!(losses.len() == exact.len() && losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
        }
    }
}

#[test]
fn corrupt_pictures_are_named_and_fatal_or_skipped() {
    let folder = shapes();
    let data = folder.path().join("shapes");
    fs::write(data.join("ring/0002.png"), "text").expect("written");
    fs::write(
        data.join("square/0001.png"),
        &fs::read(data.join("square/0001.png")).expect("a picture")[..200],
    )
    .expect("written");
    let flags = "--nproc-per-node 2 --batch-size 4 --epochs 1";
    let (run, outcome) = train(&folder, flags);
    outcome.failed_with(&[
        "2 of 48 pictures cannot be read",
        "ring/0002.png",
        "square/0001.png",
        "--on-corrupt skip",
    ]);
    assert!(!run.path.exists(), "nothing was trained");
    let skipped = train(&folder, &format!("{flags} --on-corrupt skip")).1.succeeded();
    assert!(skipped.stdout.contains("35 training, 11 test samples"), "{skipped:#?}");
    let warnings: Vec<&str> = skipped.stderr.lines().filter(|line| line.contains("warning")).collect();
    assert!(warnings.len() == 1 && warnings[0].contains("2 of 48 pictures are skipped: "), "{warnings:?}");
}

#[test]
fn folders_that_are_no_data_set_are_one_line_errors() {
    let folder = shapes();
    run_example("image_folder", TINY).failed_with(&["--data", "image_folder shapes"]);
    run(&folder.path().join("none"), "").failed_with(&["none", "no such folder"]);
    fs::create_dir_all(folder.path().join("empty/class")).expect("created");
    run(&folder.path().join("empty"), "")
        .failed_with(&["empty/class", "there are no .png, .jpg or .jpeg files"]);
    for file in [
        "one/a/1.png",
        "other/train/a/1.png",
        "other/train/b/1.png",
        "other/val/a/1.png",
        "other/val/c/1.png",
    ] {
        let path = folder.path().join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        fs::write(path, "").expect("written");
    }
    run(&folder.path().join("one"), "").failed_with(&["at least two classes"]);
    run(&folder.path().join("other"), "").failed_with(&["train", "val", "different classes"]);
    let again = format!("shapes {}", folder.path().join("shapes").display());
    run_example("image_folder", &again).failed_with(&["already exists"]);
}

#[test]
fn weights_are_transferred_to_other_classes() {
    let folder = shapes();
    let (run, outcome) = train(&folder, "--mode single --batch-size 12 --epochs 1");
    outcome.succeeded();
    let data = folder.path().join("shapes");
    let to = |name: &str| folder.path().join(name).display().to_string();
    let from = format!("--mode single --batch-size 12 --epochs 1 --lr 0 --init-from {}", run.path.display());
    // As many classes, of other names.
    fs::rename(data.join("ring"), data.join("hoop")).expect("renamed");
    self::run(&data, &from).failed_with(&["--init-from", "trained on other classes", "--no-strict"]);
    fs::remove_dir_all(data.join("hoop")).expect("removed");
    let outcome = self::run(&data, &format!("{from} --no-strict --run-dir {}", to("five"))).succeeded();
    assert!(outcome.stderr.contains("`fc.weight` has the shape"), "{outcome:#?}");
    assert!(!outcome.stderr.contains("conv1"), "{outcome:#?}");
    // With a rate of 0, the weights are those of the first run, except those of the last layer.
    for (name, run) in [("a.safetensors", run.path.display().to_string()), ("b.safetensors", to("five"))] {
        run_example("image_folder", &format!("export {run} {}", to(name))).succeeded();
    }
    let [six, five] = ["a.safetensors", "b.safetensors"].map(|name| tensors(Path::new(&to(name))));
    assert_eq!(six["layer2.0.downsample.0.weight"], five["layer2.0.downsample.0.weight"]);
    assert_ne!(six["fc.weight"].0, five["fc.weight"].0);
}

/// Shape and values of each tensor of a safetensors file.
pub fn tensors(path: &Path) -> BTreeMap<String, (Vec<usize>, Vec<u8>)> {
    let bytes = fs::read(path).expect("a file");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let tensors = file.tensors().into_iter();
    tensors.map(|(name, tensor)| (name, (tensor.shape().to_vec(), tensor.data().to_vec()))).collect()
}

#[test]
fn exported_weights_have_the_names_and_shapes_of_torchvision() {
    let folder = shapes();
    let file = folder.path().join("resnet.safetensors");
    let flags = format!("--mode single --batch-size 12 --epochs 1 --export {}", file.display());
    train(&folder, &flags).1.succeeded();
    let tensors = tensors(&file);
    let shape = |name: &str| tensors.get(name).map(|(shape, _)| shape.as_slice());
    for (name, wanted) in [
        ("conv1.weight", &[4, 1, 3, 3][..]),
        ("bn1.weight", &[4]),
        ("bn1.running_var", &[4]),
        ("layer1.0.conv2.weight", &[4, 4, 3, 3]),
        ("layer2.0.conv1.weight", &[8, 4, 3, 3]),
        ("layer2.0.bn2.bias", &[8]),
        ("layer2.0.downsample.0.weight", &[8, 4, 1, 1]),
        ("layer3.0.downsample.1.running_mean", &[16]),
        ("fc.weight", &[6, 16]),
        ("fc.bias", &[6]),
    ] {
        assert_eq!(shape(name), Some(wanted), "{name} in {:?}", tensors.keys());
    }
}

#[test]
fn uneven_classes_are_drawn_equally_often() {
    let folder = shapes();
    // One class keeps 2 pictures, of which one is for the test.
    let class = folder.path().join("shapes/cross");
    for number in 2..8 {
        fs::remove_file(class.join(format!("{number:04}.png"))).expect("removed");
    }
    let flags = "--mode single --batch-size 8 --epochs 2 --lr 0.02";
    let losses = |more: &str| {
        let (run, outcome) = train(&folder, &format!("{flags} {more}"));
        outcome.succeeded();
        let samples = run.json("config.json")["train_samples"].as_u64().expect("samples");
        assert_eq!(samples, 31);
        run.losses()
    };
    let ordered = train(&folder, &format!("{flags} --balance-classes --no-shuffle")).1;
    ordered.failed_with(&["--balance-classes", "--no-shuffle"]);
    let (even, uneven) = (losses("--balance-classes"), losses(""));
    // An epoch has as many samples, drawn in another order.
    assert_eq!(even.len(), uneven.len());
    assert_ne!(even[0], uneven[0]);
}

/// The script that writes Fashion-MNIST as pictures, on two pictures of its format.
#[test]
fn idx_files_become_folders_of_pictures() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/image_folder/fashion-mnist-to-png");
    let python = "import gzip, sys\nfor part in ['train', 't10k']:\n    for kind, data in [('images-idx3', bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3]) + bytes(range(12))), ('labels-idx1', bytes([0, 0, 8, 1, 0, 0, 0, 2, 9, 0]))]:\n        gzip.open(f'{sys.argv[1]}/{part}-{kind}-ubyte.gz', 'wb').write(data)";
    let here = folder.path().to_str().expect("UTF-8");
    let start = |program: &Path, args: &[&str]| finish(command(program, args).spawn().expect("python3"));
    start(Path::new("python3"), &["-c", python, here]).succeeded();
    let to = folder.path().join("png");
    start(&script, &[here, to.to_str().expect("UTF-8")]).succeeded();
    let picture = fs::read(to.join("val/9-ankle-boot/00000.png")).expect("a picture");
    let picture = burn_ddp::data::Picture::decode(&picture, 1).expect("a PNG");
    assert_eq!((picture.width, picture.height, picture.pixels), (3, 2, (0..6).collect()));
    assert!(to.join("train/0-t-shirt-top/00001.png").is_file());
    let again = start(&script, &[here, to.to_str().expect("UTF-8")]);
    again.failed_with(&["exists"]);
}
