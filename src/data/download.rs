//! Fetches MNIST into a folder: one program at a time, checked by SHA-256 before a file gets its
//! name, so that whatever is killed when, a file in the folder is either whole or not there.

use super::{
    DataError,
    idx::decompressed,
    locate::{self, Original, Places},
    part::{Lock, Part},
};
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};
use std::{
    fs,
    io::{BufReader, Read},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// How long each step may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// To find and to reach a mirror, each: short, so that a machine without internet knows soon.
    pub connect: Duration,
    /// Without a byte from a mirror.
    pub silence: Duration,
    /// For all files.
    pub total: Duration,
    /// For another program on this machine that is downloading.
    pub lock: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            connect: Duration::from_secs(5),
            silence: Duration::from_secs(20),
            total: Duration::from_secs(600),
            // Longer than a whole download, so that the other one has ended first.
            lock: Duration::from_secs(660),
        }
    }
}

/// Bytes by which a gzip file may be longer than its content.
const GZIP_MARGIN: u64 = 1 << 20;

/// Brings what is missing of the four files into `folder` and returns their paths. A second call
/// finds them and fetches nothing.
pub fn fetch(
    folder: &Path,
    places: &Places,
    patience: Patience,
    progress: bool,
) -> Result<[PathBuf; 4], DataError> {
    fs::create_dir_all(folder).map_err(DataError::io("create folder", folder))?;
    let bar = if progress { bar(&places.originals) } else { ProgressBar::hidden() };
    let waiting = || bar.set_message("Waiting for another program's download of MNIST");
    let _lock = Lock::acquire(folder, patience.lock, waiting)?;
    bar.set_message("Downloading MNIST");
    let mut download =
        Download { folder, mirrors: mirrors(places, patience), ends: Instant::now() + patience.total };
    let mut done = 0;
    for file in &places.originals {
        // Another program may have brought it while this one waited.
        if locate::find_one(folder, file.name).is_err() {
            download.file(file, &bar)?;
        }
        done += file.bytes;
        bar.set_position(done);
    }
    bar.finish_and_clear();
    locate::find(folder).map_err(|missing| DataError::Incomplete {
        what: "download folder",
        folder: folder.into(),
        missing,
    })
}

fn bar(originals: &[Original]) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} ({eta})");
    ProgressBar::new(originals.iter().map(|file| file.bytes).sum())
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// An address and the client for it.
struct Mirror {
    address: String,
    agent: ureq::Agent,
}

fn mirrors(places: &Places, patience: Patience) -> Vec<Mirror> {
    let mirror = |address: &String| {
        let mut config = ureq::Agent::config_builder()
            .timeout_resolve(Some(patience.connect))
            .timeout_connect(Some(patience.connect))
            .timeout_per_read(Some(patience.silence))
            .timeout_recv_response(Some(patience.silence));
        // A proxy is for what lies beyond this machine.
        if ["http://127.0.0.1", "http://localhost"].iter().any(|local| address.starts_with(local)) {
            config = config.proxy(None);
        }
        Mirror { address: address.clone(), agent: config.build().into() }
    };
    places.mirrors.iter().map(mirror).collect()
}

/// A download that is under way.
struct Download<'a> {
    folder: &'a Path,
    mirrors: Vec<Mirror>,
    ends: Instant,
}

impl Download<'_> {
    /// Asks one mirror after the other; the first that delivers is asked first for the next file.
    fn file(&mut self, file: &Original, bar: &ProgressBar) -> Result<(), DataError> {
        let before = bar.position();
        let mut attempts = vec![];
        for i in 0..self.mirrors.len() {
            match self.attempt(&self.mirrors[i], file, bar) {
                Ok(()) => {
                    self.mirrors.swap(0, i);
                    return Ok(());
                }
                Err(error) => attempts.push(error),
            }
            bar.set_position(before);
        }
        Err(DataError::Unavailable { name: file.name, attempts })
    }

    fn attempt(&self, mirror: &Mirror, file: &Original, bar: &ProgressBar) -> Result<(), DataError> {
        let url = format!("{}{}.gz", mirror.address, file.name);
        let failed = |reason: String| DataError::Download { url: url.clone(), reason };
        let left = self.ends.saturating_duration_since(Instant::now());
        let request = mirror.agent.get(&url).config().timeout_global(Some(left)).build();
        let answer = request.call().map_err(|error| failed(error.to_string()))?;
        let limited = answer.into_body().into_with_config().limit(file.bytes + GZIP_MARGIN).reader();
        let (mut content, _) =
            decompressed(BufReader::new(limited)).map_err(|error| failed(error.to_string()))?;

        let mut part = Part::create(self.folder, file.name)?;
        let mut hash = Sha256::new();
        let mut length = 0;
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = content.read(&mut buffer).map_err(|error| failed(error.to_string()))?;
            length += read as u64;
            if read == 0 || length > file.bytes {
                break;
            }
            hash.update(&buffer[..read]);
            part.write(&buffer[..read])?;
            bar.inc(read as u64);
        }
        if length != file.bytes {
            let bound = if length > file.bytes { "at least" } else { "only" };
            return Err(failed(format!("{bound} {length} bytes of content, expected {}", file.bytes)));
        }
        let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        if found != file.sha256 {
            return Err(DataError::Checksum { url, expected: file.sha256, found });
        }
        part.keep()
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{self, Answer, Mirror};
    use super::*;
    use std::thread;

    const QUICK: Patience = Patience {
        connect: Duration::from_secs(5),
        silence: Duration::from_millis(300),
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

    /// The error of the only mirror, after which nothing of the file may lie in the folder.
    fn error(answer: impl Fn(&str, Vec<u8>) -> Answer + Send + 'static) -> DataError {
        let folder = tempfile::tempdir().unwrap();
        let mirror = Mirror::serving(answer);
        let error = fetch(folder.path(), &places(&[&mirror]), QUICK, false).unwrap_err();
        let left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
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
    fn the_next_mirror_helps_out_and_then_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        let (bad, good) = (Mirror::serving(|_, _| Some((404, 0, vec![]))), Mirror::good());
        fetch(folder.path(), &places(&[&bad, &good]), QUICK, false).unwrap();
        check(folder.path());
        assert_eq!((bad.requests(), good.requests()), (1, 4));
    }

    #[test]
    fn what_is_not_the_file_is_refused() {
        let reason = |error| match error {
            DataError::Download { reason, .. } => reason,
            other => panic!("{other}"),
        };
        assert!(reason(error(|_, _| Some((404, 0, vec![])))).contains("404"));
        // The connection ends early.
        reason(error(|_, file| Some((200, file.len(), file[..file.len() / 2].to_vec()))));
        // The mirror's own copy ends early.
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
        assert!(
            matches!(&error, DataError::Checksum { expected, found, .. } if found != expected),
            "{error}"
        );
    }

    #[test]
    fn a_silent_mirror_is_given_up() {
        let error = error(|_, _| None);
        assert!(
            matches!(&error, DataError::Download { reason, .. } if reason.contains("timeout")),
            "{error}"
        );
    }

    #[test]
    fn programs_at_once_download_once() {
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
}
