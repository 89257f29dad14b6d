//! Choice of the source of images: the user's folder, `$MNIST_DIR`, the cache, the internet, or the subset.

use super::{
    DataError, Dataset, DatasetKind, Request,
    download::{self, Patience},
    idx,
    locate::{self, Places},
};
use std::path::PathBuf;

/// The source that [`prepare`] has chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// The four files: training images and labels, test images and labels.
    Files { folder: PathBuf, files: [PathBuf; 4] },
    /// The subset, and the reason if MNIST was preferred.
    Subset { notice: Option<String> },
}

impl Prepared {
    /// Reads the images: all, or the first `limits` of training and test images.
    pub fn load(&self, limits: [Option<usize>; 2]) -> Result<Dataset, DataError> {
        match self {
            Prepared::Files { folder, files: [train_images, train_labels, test_images, test_labels] } => {
                let [train, test] = limits.map(|limit| limit.unwrap_or(usize::MAX));
                Ok(Dataset {
                    train: idx::read(train_images, train_labels)?.first(train),
                    test: idx::read(test_images, test_labels)?.first(test),
                    name: "mnist",
                    source: folder.display().to_string(),
                    notice: None,
                })
            }
            Prepared::Subset { notice } => {
                Ok(Dataset { notice: notice.clone(), ..Dataset::subset(limits)? })
            }
        }
    }
}

/// Finds the data set, and downloads MNIST if necessary.
///
/// Only ranks with [`Request::download`] download. A second call finds the result of the first. Concurrent programs
/// are safe: one downloads, the others wait.
pub fn prepare(request: &Request) -> Result<Prepared, DataError> {
    prepare_in(request, &Places::of_process()?, Patience::default())
}

/// Calls [`prepare`] and [`Prepared::load`].
pub fn load(request: &Request) -> Result<Dataset, DataError> {
    prepare(request)?.load([None, None])
}

fn prepare_in(request: &Request, places: &Places, patience: Patience) -> Result<Prepared, DataError> {
    match (request.kind, &request.data_dir) {
        (DatasetKind::Subset, Some(folder)) => Err(DataError::UnusedFolder(folder.clone())),
        (DatasetKind::Subset, None) => Ok(Prepared::Subset { notice: None }),
        (DatasetKind::Auto | DatasetKind::Mnist, Some(folder)) => match locate::find(folder) {
            Ok(files) => Ok(Prepared::Files { folder: folder.clone(), files }),
            Err(missing) => Err(DataError::Incomplete { what: "--data-dir", folder: folder.clone(), missing }),
        },
        (DatasetKind::Auto, None) => search(request, places, patience).or_else(|tried| {
            let notice = format!(
                "NOT ALL OF MNIST but 6,000 training and 2,000 test images of it: accuracies do not compare with MNIST's. \
                 Name MNIST's folder with --data-dir or MNIST_DIR; tried {}",
                tried.join("; ")
            );
            Ok(Prepared::Subset { notice: Some(notice) })
        }),
        (DatasetKind::Mnist, None) => {
            search(request, places, patience).map_err(|tried| DataError::NotFound { tried })
        }
    }
}

/// Searches `$MNIST_DIR`, the cache and the internet. The error lists every place with its problem.
fn search(request: &Request, places: &Places, patience: Patience) -> Result<Prepared, Vec<String>> {
    let mut tried = vec![];
    for (name, folder) in [("MNIST_DIR", &places.mnist_dir), ("the cache folder", &places.cache)] {
        let Some(folder) = folder else { continue };
        match locate::find(folder) {
            Ok(files) => return Ok(Prepared::Files { folder: folder.clone(), files }),
            Err(missing) => tried.push(format!("{name} {}: {missing}", folder.display())),
        }
    }
    match &places.cache {
        Some(folder) if request.download => match download::fetch(folder, places, patience, request.progress)
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
        super::fixture::{self, Mirror},
        *,
    };
    use std::{fs, path::Path};

    /// The environment of a new user: an empty cache folder, and mirrors.
    fn places(cache: &Path, mirrors: &[&Mirror]) -> Places {
        Places {
            mnist_dir: None,
            cache: Some(cache.join("cache")),
            mirrors: mirrors.iter().map(|mirror| mirror.address()).collect(),
            originals: fixture::originals(),
        }
    }

    fn request(kind: DatasetKind) -> Request {
        Request { kind, download: true, ..Request::default() }
    }

    #[test]
    fn the_users_own_folder_is_the_only_place() {
        let folder = tempfile::tempdir().unwrap();
        let mirror = Mirror::good();
        let places = places(folder.path(), &[&mirror]);
        let own = folder.path().join("own");
        fs::create_dir(&own).unwrap();
        for kind in [DatasetKind::Auto, DatasetKind::Mnist] {
            let request = Request { data_dir: Some(own.clone()), ..request(kind) };
            let error = prepare_in(&request, &places, Patience::default()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("--data-dir {}: ", own.display())), "{error}");
            assert!(
                error.contains("train-images-idx3-ubyte or train-images-idx3-ubyte.gz is missing"),
                "{error}"
            );
        }
        assert_eq!(mirror.requests(), 0);

        fixture::write(&own);
        let request = Request { data_dir: Some(own.clone()), ..request(DatasetKind::Auto) };
        let dataset = prepare_in(&request, &places, Patience::default()).unwrap().load([None, None]).unwrap();
        assert_eq!((dataset.name, dataset.source), ("mnist", own.display().to_string()));
        assert_eq!((dataset.train.len(), dataset.test.len()), (fixture::TRAIN, fixture::TEST));

        let request = Request { kind: DatasetKind::Subset, ..request };
        let error = prepare_in(&request, &places, Patience::default()).unwrap_err().to_string();
        assert!(error.starts_with("--dataset subset reads no files"), "{error}");
    }

    #[test]
    fn the_variable_comes_before_the_cache_and_the_cache_before_the_internet() {
        let folder = tempfile::tempdir().unwrap();
        let mirror = Mirror::good();
        let mut places = places(folder.path(), &[&mirror]);
        let cache = folder.path().join("cache");
        let found = |places: &Places, request: &Request| {
            let Prepared::Files { folder, .. } = prepare_in(request, places, Patience::default()).unwrap()
            else {
                panic!("the subset")
            };
            folder
        };
        // A variable that names an incomplete folder is skipped.
        let variable = folder.path().join("variable");
        places.mnist_dir = Some(variable.clone());
        assert_eq!(found(&places, &request(DatasetKind::Auto)), cache);
        assert_eq!(mirror.requests(), 4);
        let dataset = prepare_in(&request(DatasetKind::Mnist), &places, Patience::default())
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
    fn without_internet_auto_takes_the_subset_and_mnist_lists_the_attempts() {
        let folder = tempfile::tempdir().unwrap();
        let mut places = places(folder.path(), &[]);
        // No process listens on a port that was just released.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        places.mirrors = vec![format!("http://127.0.0.1:{port}/")];
        places.mnist_dir = Some(folder.path().join("variable"));
        let prepared = prepare_in(&request(DatasetKind::Auto), &places, Patience::default()).unwrap();
        let Prepared::Subset { notice: Some(notice) } = prepared else { panic!("{prepared:?}") };
        assert!(notice.starts_with("NOT ALL OF MNIST ") && !notice.contains('\n'), "{notice}");

        let error =
            prepare_in(&request(DatasetKind::Mnist), &places, Patience::default()).unwrap_err().to_string();
        assert_eq!(error.lines().count(), 2, "{error}");
        let cache = folder.path().join("cache").display().to_string();
        let url = format!("http://127.0.0.1:{port}/train-images-idx3-ubyte.gz");
        for part in
            ["MNIST_DIR", "variable: there is no such folder", &cache, &url, "--data-dir", "--dataset subset"]
        {
            assert!(error.contains(part), "{part} is not in: {error}");
        }

        let silent = Request { download: false, ..request(DatasetKind::Mnist) };
        let error = prepare_in(&silent, &places, Patience::default()).unwrap_err().to_string();
        assert!(error.contains("left to the first rank of each machine"), "{error}");
        places.cache = None;
        let error =
            prepare_in(&request(DatasetKind::Mnist), &places, Patience::default()).unwrap_err().to_string();
        assert!(error.contains("for want of a home folder"), "{error}");
    }
}
