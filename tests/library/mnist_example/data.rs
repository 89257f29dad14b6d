//! Where images come from: folders, the internet, the subset.

use super::small::{self, Mirror, NAMES};
use mnist::data::{
    DataArgs, Dataset, DatasetKind, Images, MEAN, PIXELS, Places, find, load, normalise, normalised,
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The environment of a new user: an empty cache folder, and mirrors.
fn places(cache: &Path, mirrors: &[&Mirror]) -> Places<'static> {
    Places {
        mnist_dir: None,
        cache: Some(cache.join("cache")),
        mirrors: mirrors.iter().map(|mirror| mirror.address()).collect(),
        files: small::originals(),
        download: true,
        progress: false,
    }
}

fn flags(dataset: DatasetKind) -> DataArgs {
    DataArgs { dataset, ..DataArgs::default() }
}

#[test]
fn the_users_own_folder_is_the_only_place() {
    let folder = tempfile::tempdir().unwrap();
    let mirror = Mirror::good();
    let places = places(folder.path(), &[&mirror]);
    let own = folder.path().join("own");
    fs::create_dir(&own).unwrap();
    for kind in [DatasetKind::Auto, DatasetKind::Mnist] {
        let args = DataArgs { data_dir: Some(own.clone()), ..flags(kind) };
        let error = load(&args, &places).unwrap_err().to_string();
        assert!(error.starts_with(&format!("--data-dir {}: ", own.display())), "{error}");
        assert!(
            error.contains("train-images-idx3-ubyte or train-images-idx3-ubyte.gz is missing"),
            "{error}"
        );
    }
    assert_eq!(mirror.requests(), 0);

    small::write(&own);
    let args = DataArgs { data_dir: Some(own.clone()), ..flags(DatasetKind::Auto) };
    let dataset = load(&args, &places).unwrap();
    assert_eq!((dataset.name, dataset.source), ("mnist", own.display().to_string()));
    assert_eq!((dataset.train.len(), dataset.test.len()), (small::TRAIN, small::TEST));

    let args = DataArgs { dataset: DatasetKind::Subset, ..args };
    let error = load(&args, &places).unwrap_err().to_string();
    assert!(error.starts_with("--dataset subset reads no files"), "{error}");
}

#[test]
fn the_variable_comes_before_the_cache_and_the_cache_before_the_internet() {
    let folder = tempfile::tempdir().unwrap();
    let mirror = Mirror::good();
    let mut places = places(folder.path(), &[&mirror]);
    let cache = folder.path().join("cache");
    let found = |places: &Places<'_>, args: &DataArgs| {
        let Dataset { name, source, .. } = load(args, places).unwrap();
        assert_eq!(name, "mnist");
        PathBuf::from(source)
    };
    // A variable that names an incomplete folder is skipped.
    let variable = folder.path().join("variable");
    places.mnist_dir = Some(variable.clone());
    assert_eq!(found(&places, &flags(DatasetKind::Auto)), cache);
    assert_eq!(mirror.requests(), 4);
    let dataset = load(&flags(DatasetKind::Mnist), &places).unwrap();
    assert_eq!((dataset.name, dataset.notice), ("mnist", None));
    assert_eq!(mirror.requests(), 4, "the second look-up found what the first had brought");
    fs::create_dir(&variable).unwrap();
    small::write(&variable);
    assert_eq!(found(&places, &flags(DatasetKind::Auto)), variable);
}

#[test]
fn without_internet_auto_takes_the_subset_and_mnist_lists_the_attempts() {
    let folder = tempfile::tempdir().unwrap();
    let mut places = places(folder.path(), &[]);
    // No process listens on a port that was just released.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    places.mirrors = vec![format!("http://127.0.0.1:{port}/")];
    places.mnist_dir = Some(folder.path().join("variable"));
    let dataset = load(&flags(DatasetKind::Auto), &places).unwrap();
    let notice = dataset.notice.expect("a warning");
    assert!(notice.starts_with("NOT ALL OF MNIST ") && !notice.contains('\n'), "{notice}");
    assert_eq!((dataset.name, dataset.train.len(), dataset.test.len()), ("subset", 6000, 2000));

    let error = load(&flags(DatasetKind::Mnist), &places).unwrap_err().to_string();
    assert_eq!(error.lines().count(), 2, "{error}");
    let cache = folder.path().join("cache").display().to_string();
    let url = format!("http://127.0.0.1:{port}/train-images-idx3-ubyte.gz");
    for part in
        ["MNIST_DIR", "variable: there is no such folder", &cache, &url, "--data-dir", "--dataset subset"]
    {
        assert!(error.contains(part), "{part} is not in: {error}");
    }

    let silent = Places { download: false, ..places.clone() };
    let error = load(&flags(DatasetKind::Mnist), &silent).unwrap_err().to_string();
    assert!(error.contains("left to the first rank of each machine"), "{error}");
    places.cache = None;
    let error = load(&flags(DatasetKind::Mnist), &places).unwrap_err().to_string();
    assert!(error.contains("for want of a home folder"), "{error}");
}

#[test]
fn files_are_found_under_each_of_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let names = [
        "train-images-idx3-ubyte.gz",
        "train-labels.idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels.idx1-ubyte.gz",
    ];
    for (i, name) in names.iter().enumerate() {
        let missing = find(folder.path()).unwrap_err();
        assert_eq!(missing, format!("{0} or {0}.gz is missing", NAMES[i]));
        fs::write(folder.path().join(name), "").unwrap();
    }
    assert_eq!(find(folder.path()).unwrap(), names.map(|name| folder.path().join(name)));
    // A plain file is preferred because it loads faster.
    fs::write(folder.path().join(NAMES[0]), "").unwrap();
    assert_eq!(find(folder.path()).unwrap()[0], folder.path().join(NAMES[0]));
}

#[test]
fn a_missing_folder_and_a_folder_in_place_of_a_file_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(find(&folder.path().join("none")).unwrap_err(), "there is no such folder");
    fs::create_dir(folder.path().join(NAMES[0])).unwrap();
    assert_eq!(find(folder.path()).unwrap_err(), "train-images-idx3-ubyte is not a file");
}

#[test]
fn the_first_images_of_mnist() {
    let dataset = Dataset::subset([None, None]).unwrap();
    assert_eq!((dataset.train.len(), dataset.test.len()), (6000, 2000));
    assert_eq!(dataset.train.labels[..10], [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]);
    assert_eq!(dataset.test.labels[..10], [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]);
    let sum = |images: &Images| images.pixels.iter().map(|&pixel| u64::from(pixel)).sum::<u64>();
    assert_eq!((sum(&dataset.train), sum(&dataset.test)), (157_703_741, 48_335_026));
    // The constant refers to all 60,000 images.
    let mean = sum(&dataset.train) as f64 / 255.0 / dataset.train.pixels.len() as f64;
    assert!((mean - f64::from(MEAN)).abs() < 1e-3, "{mean}");
    let few = Dataset::subset([Some(30), Some(20)]).unwrap();
    assert_eq!((few.train.len(), few.test.len()), (30, 20));
    assert_eq!(few.train.pixels[..], dataset.train.pixels[..few.train.pixels.len()]);
}

#[test]
fn different_data_sets_have_different_digests() {
    let digest = |train, test| Dataset::subset([Some(train), Some(test)]).unwrap().digest();
    assert_eq!(digest(20, 10), digest(20, 10));
    assert_ne!(digest(20, 10), digest(21, 10));
    assert_ne!(digest(20, 10), digest(20, 11));
    assert_eq!(digest(20, 10).len(), 64);
}

#[test]
fn normalisation_follows_pytorch() {
    // Reference: torchvision's ToTensor and Normalize.
    assert!((normalise(0.0) - -0.424_212_93).abs() < 1e-7);
    assert!((normalise(255.0) - 2.821_486_7).abs() < 1e-6);
    let images = Dataset::subset([Some(2), Some(1)]).unwrap().train;
    let mut batch = vec![];
    batch.extend(normalised(images.image(1)));
    batch.extend(normalised(images.image(0)));
    let expected = |index| images.image(index).iter().map(|pixel| normalise(f32::from(*pixel)));
    assert_eq!(batch, expected(1).chain(expected(0)).collect::<Vec<_>>());
    assert_eq!(batch.len(), 2 * PIXELS);
}
