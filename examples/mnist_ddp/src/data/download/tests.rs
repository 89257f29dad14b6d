//! Downloads from correct and faulty mirrors within this process.
use super::super::fixture::{self, Answer, Mirror};
use super::*;
use std::thread;

const QUICK: Timeouts = Timeouts {
    connect: Duration::from_secs(5),
    read: Duration::from_millis(300),
    total: Duration::from_secs(60),
    lock: Duration::from_secs(60),
};

fn places(mirrors: &[&Mirror]) -> Places {
    Places {
        mnist_dir: None,
        cache: None,
        mirrors: mirrors.iter().map(|mirror| mirror.address()).collect(),
        originals: fixture::originals(),
    }
}

/// Returns the error of the only mirror and checks that no partial file remains.
fn error(answer: impl Fn(&str, Vec<u8>) -> Answer + Send + 'static) -> DataError {
    let folder = tempfile::tempdir().unwrap();
    let mirror = Mirror::serving(answer);
    let error = fetch(folder.path(), &places(&[&mirror]), QUICK, false).unwrap_err();
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [".lock"]);
    assert!(
        error.to_string().contains(&format!("{}train-images-idx3-ubyte.gz: ", mirror.address())),
        "{error}"
    );
    match error {
        DataError::Unavailable { name: "train-images-idx3-ubyte", mut attempts } => attempts.remove(0),
        other => panic!("{other}"),
    }
}

fn check(folder: &Path) {
    for (name, bytes) in fixture::files() {
        assert_eq!(fs::read(folder.join(name)).unwrap(), bytes, "{name}");
    }
}

#[test]
fn a_download_is_kept_uncompressed_and_not_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("new").join("folder");
    let mirror = Mirror::good();
    let paths = fetch(&cache, &places(&[&mirror]), QUICK, true).unwrap();
    assert_eq!(paths, fixture::files().map(|(name, _)| cache.join(name)));
    check(&cache);
    fs::remove_file(&paths[1]).unwrap();
    fetch(&cache, &places(&[&mirror]), QUICK, false).unwrap();
    check(&cache);
    assert_eq!(mirror.requests(), 5);
}

#[test]
fn a_mirror_may_send_the_file_unpacked() {
    let folder = tempfile::tempdir().unwrap();
    let mirror = Mirror::serving(|name, _| {
        let (_, bytes) = fixture::files().into_iter().find(|(file, _)| *file == name)?;
        Some((200, bytes.len(), bytes))
    });
    fetch(folder.path(), &places(&[&mirror]), QUICK, false).unwrap();
    check(folder.path());
}

#[test]
fn the_first_mirror_that_succeeds_is_used_first_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let (bad, good) = (Mirror::serving(|_, _| Some((404, 0, vec![]))), Mirror::good());
    fetch(folder.path(), &places(&[&bad, &good]), QUICK, false).unwrap();
    check(folder.path());
    assert_eq!((bad.requests(), good.requests()), (1, 4));
}

#[test]
fn wrong_content_is_rejected() {
    let reason = |error| match error {
        DataError::Download { reason, .. } => reason,
        other => panic!("{other}"),
    };
    assert!(reason(error(|_, _| Some((404, 0, vec![])))).contains("404"));
    // The connection ends early.
    reason(error(|_, file| Some((200, file.len(), file[..file.len() / 2].to_vec()))));
    // The mirror's copy is truncated.
    reason(error(|_, file| Some((200, file.len() / 2, file[..file.len() / 2].to_vec()))));
    let page = b"<html>Please log in to this network</html>".to_vec();
    assert_eq!(
        reason(error(move |_, _| Some((200, page.len(), page.clone())))),
        "only 42 bytes of content, expected 23536"
    );
    // A small answer that unpacks to far more than the file.
    let bomb = fixture::gzip(&vec![0; 1 << 24]);
    let reason = reason(error(move |_, _| Some((200, bomb.len(), bomb.clone()))));
    let words: Vec<_> = reason.split(' ').collect();
    let ["at", "least", length, "bytes", "of", "content,", "expected", "23536"] = words[..] else {
        panic!("{reason}")
    };
    assert!(length.parse::<u64>().unwrap() <= 23536 + (1 << 16), "unpacked {length} bytes");
    let mut other = fixture::images(fixture::TRAIN);
    other[100] ^= 1;
    let other = fixture::gzip(&other);
    let error = error(move |_, _| Some((200, other.len(), other.clone())));
    assert!(matches!(&error, DataError::Checksum { expected, found, .. } if found != expected), "{error}");
}

#[test]
fn a_silent_mirror_times_out() {
    let error = error(|_, _| None);
    assert!(matches!(&error, DataError::Download { reason, .. } if reason.contains("timeout")), "{error}");
}

#[test]
fn concurrent_processes_download_once() {
    let folder = tempfile::tempdir().unwrap();
    let mirror = Mirror::serving(|_, file| {
        thread::sleep(Duration::from_millis(50));
        Some((200, file.len(), file))
    });
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| fetch(folder.path(), &places(&[&mirror]), QUICK, false).unwrap());
        }
    });
    check(folder.path());
    assert_eq!(mirror.requests(), 4);
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = fetch(&file.join("cache"), &places(&[]), QUICK, false).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot create folder {}", file.display())), "{error}");
}
