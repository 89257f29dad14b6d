//! Download of MNIST into a folder.
//!
//! One process downloads at a time. A file is verified by SHA-256 and renamed when it is complete, so that an
//! interrupted download leaves no partial file under its final name.

use super::{
    DataError,
    idx::decompressed,
    locate::{self, Original, Places},
    part::{Lock, PartialFile},
};
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};
use std::{
    fs,
    io::{BufReader, Read},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Time limits of a download.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Limit of DNS resolution and of connecting. It is short, so that a machine without internet fails soon.
    pub connect: Duration,
    /// Limit of waiting for a response or for more data.
    pub read: Duration,
    /// Limit for all files.
    pub total: Duration,
    /// Limit of waiting for another process that is downloading.
    pub lock: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            connect: Duration::from_secs(5),
            read: Duration::from_secs(20),
            total: Duration::from_secs(600),
            // Longer than `total`, so that the other download ends first.
            lock: Duration::from_secs(660),
        }
    }
}

/// Maximum size of a gzip file beyond that of its content, in bytes.
const GZIP_MARGIN: u64 = 1 << 20;

/// Downloads missing files of MNIST into `folder` and returns the paths of all four.
///
/// # Errors
/// If another process holds the lock for too long, no mirror delivers a file, or a file cannot be written.
pub fn fetch(
    folder: &Path,
    places: &Places,
    timeouts: Timeouts,
    progress: bool,
) -> Result<[PathBuf; 4], DataError> {
    fs::create_dir_all(folder).map_err(DataError::io("create folder", folder))?;
    let bar = if progress { bar(&places.originals) } else { ProgressBar::hidden() };
    let waiting = || bar.set_message("Waiting for another program's download of MNIST");
    let _lock = Lock::acquire(folder, timeouts.lock, waiting)?;
    bar.set_message("Downloading MNIST");
    let mut download =
        Download { folder, mirrors: mirrors(places, timeouts), ends: Instant::now() + timeouts.total };
    let mut done = 0;
    for file in &places.originals {
        // Another process may have downloaded it while this one waited.
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

/// A mirror with its HTTP client.
struct Mirror {
    address: String,
    agent: ureq::Agent,
}

fn mirrors(places: &Places, timeouts: Timeouts) -> Vec<Mirror> {
    let mirror = |address: &String| {
        let mut config = ureq::Agent::config_builder()
            .timeout_resolve(Some(timeouts.connect))
            .timeout_connect(Some(timeouts.connect))
            .timeout_per_read(Some(timeouts.read))
            .timeout_recv_response(Some(timeouts.read));
        // Local mirrors are reached without a proxy.
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
    /// Downloads a file from the first mirror that succeeds. It is tried first for the next file.
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

        let mut part = PartialFile::create(self.folder, file.name)?;
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
        part.persist()
    }
}

#[cfg(test)]
mod tests;
