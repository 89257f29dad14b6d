//! Download of MNIST into a folder.
//!
//! One program at a time downloads, and a file gets its name only after its SHA-256 is verified, so that an interrupted
//! download leaves no incomplete file.

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

/// Time limits.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Limit of name resolution and of the connection.
    ///
    /// Short, so that a machine without internet fails soon.
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
            // Longer than a whole download, so that the other program has ended.
            lock: Duration::from_secs(660),
        }
    }
}

/// Maximum overhead of a gzip file over its content in bytes.
const GZIP_MARGIN: u64 = 1 << 20;

/// Downloads the missing files into `folder` and returns the paths of all four.
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
        // Another program may have downloaded it while this one waited.
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

/// An address and its HTTP client.
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
        // A proxy is not used for this machine.
        if ["http://127.0.0.1", "http://localhost"].iter().any(|local| address.starts_with(local)) {
            config = config.proxy(None);
        }
        Mirror { address: address.clone(), agent: config.build().into() }
    };
    places.mirrors.iter().map(mirror).collect()
}

/// A download in progress.
struct Download<'a> {
    folder: &'a Path,
    mirrors: Vec<Mirror>,
    ends: Instant,
}

impl Download<'_> {
    /// Tries the mirrors in turn. The first that succeeds is first for the next file.
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
        let found = hex::encode(hash.finalize());
        if found != file.sha256 {
            return Err(DataError::Checksum { url, expected: file.sha256, found });
        }
        part.keep()
    }
}

#[cfg(test)]
mod tests;
