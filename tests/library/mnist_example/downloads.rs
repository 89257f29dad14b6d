//! Downloads from correct and faulty servers in this process.

use super::small::{self, Mirror};
use crate::http::Answer;
use anyhow::Result;
use burn_ddp::data::download::{TimeLimits, download};
use std::{
    fs::{self, File},
    path::Path,
    thread,
    time::Duration,
};

const QUICK: TimeLimits = TimeLimits {
    connect: Duration::from_secs(5),
    silence: Duration::from_millis(300),
    total: Duration::from_secs(60),
    lock: Duration::from_secs(60),
};

fn fetch(folder: &Path, mirrors: &[&Mirror]) -> Result<()> {
    let mirrors: Vec<String> = mirrors.iter().map(|mirror| mirror.address()).collect();
    download(folder, &small::originals(), &mirrors, QUICK, None)
}

/// The error of the only mirror, after which the folder must not contain the file.
fn error(answer: impl Fn(&str, Vec<u8>) -> Answer + Send + Sync + 'static) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mirror = Mirror::serving(answer);
    let error = fetch(folder.path(), &[&mirror]).unwrap_err().to_string();
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [".lock"]);
    let start = format!(
        "train-images-idx3-ubyte could not be downloaded: {}train-images-idx3-ubyte.gz: ",
        mirror.address()
    );
    error.strip_prefix(&start).unwrap_or_else(|| panic!("{error}")).to_owned()
}

fn check(folder: &Path) {
    for (name, bytes) in small::files() {
        assert_eq!(fs::read(folder.join(name)).unwrap(), bytes, "{name}");
    }
}

#[test]
fn a_download_is_kept_uncompressed_and_not_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("new").join("folder");
    let mirror = Mirror::good();
    fetch(&cache, &[&mirror]).unwrap();
    check(&cache);
    fs::remove_file(cache.join(small::NAMES[1])).unwrap();
    fetch(&cache, &[&mirror]).unwrap();
    check(&cache);
    assert_eq!(mirror.requests(), 5);
}

#[test]
fn a_mirror_may_send_the_file_unpacked() {
    let folder = tempfile::tempdir().unwrap();
    let mirror = Mirror::serving(|name, _| {
        let (_, bytes) = small::files().into_iter().find(|(file, _)| *file == name)?;
        Some((200, bytes.len(), bytes))
    });
    fetch(folder.path(), &[&mirror]).unwrap();
    check(folder.path());
}

#[test]
fn the_next_mirror_is_used_and_then_tried_first() {
    let folder = tempfile::tempdir().unwrap();
    let (bad, good) = (Mirror::serving(|_, _| Some((404, 0, vec![]))), Mirror::good());
    fetch(folder.path(), &[&bad, &good]).unwrap();
    check(folder.path());
    assert_eq!((bad.requests(), good.requests()), (1, 4));
}

#[test]
fn wrong_files_are_rejected() {
    assert!(error(|_, _| Some((404, 0, vec![]))).contains("404"));
    // The connection ends early.
    error(|_, file| Some((200, file.len(), file[..file.len() / 2].to_vec())));
    // The mirror's file is truncated.
    error(|_, file| Some((200, file.len() / 2, file[..file.len() / 2].to_vec())));
    let page = b"<html>Please log in to this network</html>".to_vec();
    assert_eq!(
        error(move |_, _| Some((200, page.len(), page.clone()))),
        "only 42 bytes of content, expected 23536"
    );
    // A small response that decompresses to far more than the file.
    let bomb = small::gzip(&vec![0; 1 << 24]);
    assert_eq!(
        error(move |_, _| Some((200, bomb.len(), bomb.clone()))),
        "at least 23537 bytes of content, expected 23536"
    );
    let mut other = small::images(small::TRAIN);
    other[100] ^= 1;
    let other = small::gzip(&other);
    let error = error(move |_, _| Some((200, other.len(), other.clone())));
    let (_, sums) = error.split_once("SHA-256 of the content is ").unwrap_or_else(|| panic!("{error}"));
    let (found, expected) = sums.split_once(", expected ").unwrap_or_else(|| panic!("{error}"));
    assert!(found != expected && expected == small::originals()[0].sha256, "{error}");
}

#[test]
fn a_silent_mirror_times_out() {
    let error = error(|_, _| None);
    assert!(error.contains("timeout"), "{error}");
}

#[test]
fn concurrent_programs_download_once() {
    let folder = tempfile::tempdir().unwrap();
    let mirror = Mirror::serving(|_, file| {
        thread::sleep(Duration::from_millis(50));
        Some((200, file.len(), file))
    });
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| fetch(folder.path(), &[&mirror]).unwrap());
        }
    });
    check(folder.path());
    assert_eq!(mirror.requests(), 4);
}

#[test]
fn a_folder_that_cannot_be_created_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = format!("{:#}", fetch(&file.join("cache"), &[]).unwrap_err());
    assert!(error.starts_with(&format!("cannot create folder {}", file.display())), "{error}");
}

#[test]
fn the_lock_of_another_program_has_a_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let held = File::create(folder.path().join(".lock")).unwrap();
    held.lock().unwrap();
    let (mirror, limits) = (Mirror::good(), TimeLimits { lock: Duration::from_millis(120), ..QUICK });
    let started = || download(folder.path(), &small::originals(), &[mirror.address()], limits, Some("MNIST"));
    let error = started().unwrap_err().to_string();
    assert!(error.contains(".lock: another program has held this lock for 0 s"), "{error}");
    drop(held);
    started().unwrap();
    check(folder.path());
}
