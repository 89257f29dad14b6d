//! Selection of the data source: the user's folder, `$MNIST_DIR`, the cache, the internet, or the generator.

use super::{
    DataError, Dataset, DatasetKind, Request, TEST_DIGITS, TRAIN_DIGITS,
    download::{self, Timeouts},
    idx,
    locate::{self, Places},
};
use std::path::PathBuf;

/// Data source selected by [`prepare`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// Files of training images and labels, and of test images and labels.
    Files { folder: PathBuf, files: [PathBuf; 4] },
    /// Generated digits, with a warning if they replace MNIST.
    Digits { seed: u64, notice: Option<String> },
}

impl Prepared {
    /// Reads or generates the images, limited to the first `limits` training and test images.
    ///
    /// # Errors
    /// If a file cannot be read or is invalid.
    pub fn load(&self, limits: [Option<usize>; 2]) -> Result<Dataset, DataError> {
        let [train, test] = limits.map(|limit| limit.unwrap_or(usize::MAX));
        match self {
            Prepared::Files { folder, files: [train_images, train_labels, test_images, test_labels] } => {
                Ok(Dataset {
                    train: idx::read(train_images, train_labels)?.first(train),
                    test: idx::read(test_images, test_labels)?.first(test),
                    name: "mnist",
                    source: folder.display().to_string(),
                    notice: None,
                })
            }
            Prepared::Digits { seed, notice } => {
                let digits = Dataset::digits(train.min(TRAIN_DIGITS), test.min(TEST_DIGITS), *seed);
                Ok(Dataset { notice: notice.clone(), ..digits })
            }
        }
    }
}

/// Finds the data set, and downloads MNIST if it is missing and `request.download` is set.
///
/// Concurrent calls are safe: one process downloads and the others wait.
///
/// # Errors
/// If the requested data set is not found or incomplete, or `MNIST_MIRROR` is not a URL.
pub fn prepare(request: &Request) -> Result<Prepared, DataError> {
    prepare_in(request, &Places::of_process()?, Timeouts::default())
}

/// Finds and loads all images of a data set.
///
/// # Errors
/// As for [`prepare`] and [`Prepared::load`].
pub fn load(request: &Request) -> Result<Dataset, DataError> {
    prepare(request)?.load([None, None])
}

fn prepare_in(request: &Request, places: &Places, timeouts: Timeouts) -> Result<Prepared, DataError> {
    match (request.kind, &request.data_dir) {
        (DatasetKind::Digits, Some(folder)) => Err(DataError::UnusedFolder(folder.clone())),
        (DatasetKind::Digits, None) => Ok(Prepared::Digits { seed: request.seed, notice: None }),
        (DatasetKind::Auto | DatasetKind::Mnist, Some(folder)) => match locate::find(folder) {
            Ok(files) => Ok(Prepared::Files { folder: folder.clone(), files }),
            Err(missing) => Err(DataError::Incomplete { what: "--data-dir", folder: folder.clone(), missing }),
        },
        (DatasetKind::Auto, None) => search(request, places, timeouts).or_else(|tried| {
            let notice = format!(
                "NOT MNIST but generated digits: accuracies do not compare with MNIST's. Name MNIST's folder with \
                 --data-dir or MNIST_DIR; tried {}",
                tried.join("; ")
            );
            Ok(Prepared::Digits { seed: request.seed, notice: Some(notice) })
        }),
        (DatasetKind::Mnist, None) => {
            search(request, places, timeouts).map_err(|tried| DataError::NotFound { tried })
        }
    }
}

/// Searches `$MNIST_DIR`, the cache and the internet, in this order.
///
/// # Errors
/// If MNIST is not found. The error lists every location with its problem.
fn search(request: &Request, places: &Places, timeouts: Timeouts) -> Result<Prepared, Vec<String>> {
    let mut tried = vec![];
    for (name, folder) in [("MNIST_DIR", &places.mnist_dir), ("the cache folder", &places.cache)] {
        let Some(folder) = folder else { continue };
        match locate::find(folder) {
            Ok(files) => return Ok(Prepared::Files { folder: folder.clone(), files }),
            Err(missing) => tried.push(format!("{name} {}: {missing}", folder.display())),
        }
    }
    match &places.cache {
        Some(folder) if request.download => match download::fetch(folder, places, timeouts, request.progress)
        {
            Ok(files) => return Ok(Prepared::Files { folder: folder.clone(), files }),
            Err(error) => tried.push(error.to_string()),
        },
        Some(_) => tried.push("no download, which is left to the first rank of each machine".into()),
        None => tried.push("no download, for want of a home folder to keep it in".into()),
    }
    Err(tried)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Images, MEAN,
            fixture::{self, Mirror},
        },
        *,
    };
    use std::{fs, path::Path};

    /// Locations with an empty cache folder and mirrors.
    fn places(cache: &Path, mirrors: &[&Mirror]) -> Places {
        Places {
            mnist_dir: None,
            cache: Some(cache.join("cache")),
            mirrors: mirrors.iter().map(|mirror| mirror.address()).collect(),
            originals: fixture::originals(),
        }
    }

    fn request(kind: DatasetKind) -> Request {
        Request { kind, seed: 5, download: true, ..Request::default() }
    }

    #[test]
    fn only_the_users_folder_is_searched() {
        let folder = tempfile::tempdir().unwrap();
        let mirror = Mirror::good();
        let places = places(folder.path(), &[&mirror]);
        let own = folder.path().join("own");
        fs::create_dir(&own).unwrap();
        for kind in [DatasetKind::Auto, DatasetKind::Mnist] {
            let request = Request { data_dir: Some(own.clone()), ..request(kind) };
            let error = prepare_in(&request, &places, Timeouts::default()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("--data-dir {}: ", own.display())), "{error}");
            assert!(
                error.contains("train-images-idx3-ubyte or train-images-idx3-ubyte.gz is missing"),
                "{error}"
            );
        }
        assert_eq!(mirror.requests(), 0);

        fixture::write(&own);
        let request = Request { data_dir: Some(own.clone()), ..request(DatasetKind::Auto) };
        let dataset = prepare_in(&request, &places, Timeouts::default()).unwrap().load([None, None]).unwrap();
        assert_eq!((dataset.name, dataset.source), ("mnist", own.display().to_string()));
        assert_eq!((dataset.train.len(), dataset.test.len()), (fixture::TRAIN, fixture::TEST));

        let request = Request { kind: DatasetKind::Digits, ..request };
        let error = prepare_in(&request, &places, Timeouts::default()).unwrap_err().to_string();
        assert!(error.starts_with("--dataset digits reads no files"), "{error}");
    }

    #[test]
    fn the_variable_comes_before_the_cache_and_the_cache_before_the_internet() {
        let folder = tempfile::tempdir().unwrap();
        let mirror = Mirror::good();
        let mut places = places(folder.path(), &[&mirror]);
        let cache = folder.path().join("cache");
        let found = |places: &Places, request: &Request| {
            let Prepared::Files { folder, .. } = prepare_in(request, places, Timeouts::default()).unwrap()
            else {
                panic!("generated digits")
            };
            folder
        };
        // A variable that names an incomplete folder is skipped.
        let variable = folder.path().join("variable");
        places.mnist_dir = Some(variable.clone());
        assert_eq!(found(&places, &request(DatasetKind::Auto)), cache);
        assert_eq!(mirror.requests(), 4);
        let dataset = prepare_in(&request(DatasetKind::Mnist), &places, Timeouts::default())
            .unwrap()
            .load([None, None])
            .unwrap();
        assert_eq!((dataset.name, dataset.notice), ("mnist", None));
        assert_eq!(mirror.requests(), 4, "the second look-up found what the first had brought");
        fs::create_dir(&variable).unwrap();
        fixture::write(&variable);
        assert_eq!(found(&places, &request(DatasetKind::Auto)), variable);
    }

    #[test]
    fn without_internet_auto_generates_and_mnist_lists_the_locations() {
        let folder = tempfile::tempdir().unwrap();
        let mut places = places(folder.path(), &[]);
        // Nothing listens on a port that was just released.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        places.mirrors = vec![format!("http://127.0.0.1:{port}/")];
        places.mnist_dir = Some(folder.path().join("variable"));
        let prepared = prepare_in(&request(DatasetKind::Auto), &places, Timeouts::default()).unwrap();
        let Prepared::Digits { seed: 5, notice: Some(notice) } = prepared else { panic!("{prepared:?}") };
        assert!(notice.starts_with("NOT MNIST but generated digits") && !notice.contains('\n'), "{notice}");

        let error =
            prepare_in(&request(DatasetKind::Mnist), &places, Timeouts::default()).unwrap_err().to_string();
        assert_eq!(error.lines().count(), 2, "{error}");
        let cache = folder.path().join("cache").display().to_string();
        let url = format!("http://127.0.0.1:{port}/train-images-idx3-ubyte.gz");
        for part in
            ["MNIST_DIR", "variable: there is no such folder", &cache, &url, "--data-dir", "--dataset digits"]
        {
            assert!(error.contains(part), "{part} is not in: {error}");
        }

        let silent = Request { download: false, ..request(DatasetKind::Mnist) };
        let error = prepare_in(&silent, &places, Timeouts::default()).unwrap_err().to_string();
        assert!(error.contains("left to the first rank of each machine"), "{error}");
        places.cache = None;
        let error =
            prepare_in(&request(DatasetKind::Mnist), &places, Timeouts::default()).unwrap_err().to_string();
        assert!(error.contains("for want of a home folder"), "{error}");
    }

    #[test]
    fn the_first_images_of_mnist() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/mnist");
        let dataset = load(&Request { data_dir: Some(folder), ..Request::default() }).unwrap();
        assert_eq!((dataset.train.len(), dataset.test.len()), (6000, 2000));
        assert_eq!(dataset.train.labels()[..10], [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]);
        assert_eq!(dataset.test.labels()[..10], [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]);
        let sum = |images: &Images| images.pixels().iter().map(|&pixel| u64::from(pixel)).sum::<u64>();
        assert_eq!((sum(&dataset.train), sum(&dataset.test)), (157_703_741, 48_335_026));
        // The constant is the mean of all 60,000 images.
        let mean = sum(&dataset.train) as f64 / 255.0 / dataset.train.pixels().len() as f64;
        assert!((mean - f64::from(MEAN)).abs() < 1e-3, "{mean}");
    }
}
