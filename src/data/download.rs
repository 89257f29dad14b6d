//! Verified download of a data set's files.
//!
//! One program at a time downloads into a folder, and a file gets its name only after its SHA-256 is verified.

use crate::process::atomic_file;
use anyhow::{Context, Result, anyhow, bail};
use flate2::bufread::MultiGzDecoder;
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};
use std::{
    fs::{self, File, TryLockError},
    io::{BufRead, BufReader, Read},
    path::Path,
    thread,
    time::{Duration, Instant},
};
use ureq::{Agent, config::ConfigBuilder, http::Uri, typestate::AgentScope};

/// A file and the content that it must have.
#[derive(Clone, Copy, Debug)]
pub struct RemoteFile<'a> {
    /// Name in the folder; a mirror has the file as `NAME.gz`.
    pub name: &'a str,
    /// Uncompressed length.
    pub bytes: u64,
    /// SHA-256 of the uncompressed content, lower-case hexadecimal.
    pub sha256: &'a str,
}

/// Time limits of a download.
#[derive(Clone, Copy, Debug)]
pub struct TimeLimits {
    /// Limit of name resolution and of the connection, short so that a machine without internet fails soon.
    pub connect: Duration,
    /// Without a byte from a mirror.
    pub silence: Duration,
    /// For all files.
    pub total: Duration,
    /// For another program on this machine that is downloading.
    pub lock: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        TimeLimits {
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

/// Downloads the files that `folder` lacks from the first of `mirrors` that has them.
///
/// Mirrors are addresses with a final slash. `progress` names the data set on a progress bar on standard error.
///
/// # Errors
/// If the folder cannot be written, no mirror delivers a file with the expected content, or a time limit expires.
pub fn download(
    folder: &Path,
    files: &[RemoteFile<'_>],
    mirrors: &[String],
    limits: TimeLimits,
    progress: Option<&str>,
) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create folder {}", folder.display()))?;
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} ({eta})");
    let bar = match progress {
        Some(_) => ProgressBar::new(files.iter().map(|file| file.bytes).sum()),
        None => ProgressBar::hidden(),
    }
    .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let what = progress.unwrap_or_default();
    let _lock = lock(folder, limits.lock, || {
        bar.set_message(format!("Waiting for another program's download of {what}"));
    })?;
    bar.set_message(format!("Downloading {what}"));
    let ends = Instant::now() + limits.total;
    let mut mirrors: Vec<Mirror> = mirrors.iter().map(|address| Mirror::new(address, limits)).collect();
    let mut done = 0;
    for file in files {
        // Another program may have downloaded it while this one waited.
        if !folder.join(file.name).is_file() {
            let mut attempts = Vec::new();
            let found = mirrors.iter().position(|mirror| {
                bar.set_position(done);
                let content = mirror.content(file, ends, &bar);
                let written = content.and_then(|bytes| atomic_file::write(&folder.join(file.name), &bytes));
                written.map_err(|error| attempts.push(format!("{error:#}"))).is_ok()
            });
            let Some(found) = found else {
                bail!("{} could not be downloaded: {}", file.name, attempts.join("; "))
            };
            // The mirror that has this file is tried first for the next.
            mirrors.swap(0, found);
        }
        done += file.bytes;
        bar.set_position(done);
    }
    bar.finish_and_clear();
    Ok(())
}

/// Waits for an advisory lock on a folder, held until the file is dropped; calls `waiting` once if it has to wait.
///
/// On file systems without locks it has no effect, and two programs do the same work.
fn lock(folder: &Path, limit: Duration, waiting: impl FnOnce()) -> Result<File> {
    let path = folder.join(".lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("cannot create {}", path.display()))?;
    let (ends, mut waiting) = (Instant::now() + limit, Some(waiting));
    while let Err(TryLockError::WouldBlock) = file.try_lock() {
        if Instant::now() >= ends {
            let seconds = limit.as_secs();
            bail!(
                "{}: another program has held this lock for {seconds} s; end it or delete the file",
                path.display()
            );
        }
        if let Some(waiting) = waiting.take() {
            waiting();
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(file)
}

/// Settings of an HTTP client for `address`. A proxy is not used for this machine.
///
/// `connect` limits name resolution and the connection.
pub(crate) fn http_client(address: &str, connect: Duration) -> ConfigBuilder<AgentScope> {
    let config = Agent::config_builder().timeout_resolve(Some(connect)).timeout_connect(Some(connect));
    let host = address.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_owned));
    match host {
        Some(host) if host == "localhost" || host == "[::1]" || host.starts_with("127.") => {
            config.proxy(None)
        }
        Some(_) | None => config,
    }
}

/// An address and its HTTP client.
struct Mirror<'a> {
    address: &'a str,
    agent: Agent,
}

impl<'a> Mirror<'a> {
    fn new(address: &'a str, limits: TimeLimits) -> Self {
        let config = http_client(address, limits.connect)
            .timeout_per_read(Some(limits.silence))
            .timeout_recv_response(Some(limits.silence));
        Mirror { address, agent: config.build().into() }
    }

    /// The verified content of a file.
    fn content(&self, file: &RemoteFile<'_>, ends: Instant, bar: &ProgressBar) -> Result<Vec<u8>> {
        let url = format!("{}{}.gz", self.address, file.name);
        let failed = |reason: String| anyhow!("{url}: {reason}");
        let left = ends.saturating_duration_since(Instant::now());
        let request = self.agent.get(&url).config().timeout_global(Some(left)).build();
        let answer = request.call().map_err(|error| failed(error.to_string()))?;
        let limited = answer.into_body().into_with_config().limit(file.bytes + GZIP_MARGIN).reader();
        let content = decompressed(BufReader::new(limited)).map_err(|error| failed(error.to_string()))?;
        let mut bytes = Vec::new();
        let read = bar.wrap_read(content.take(file.bytes + 1)).read_to_end(&mut bytes);
        let length = read.map_err(|error| failed(error.to_string()))? as u64;
        if length != file.bytes {
            let bound = if length > file.bytes { "at least" } else { "only" };
            return Err(failed(format!("{bound} {length} bytes of content, expected {}", file.bytes)));
        }
        let found = hex::encode(Sha256::digest(&bytes));
        if found != file.sha256 {
            bail!("{url}: SHA-256 of the content is {found}, expected {}", file.sha256);
        }
        Ok(bytes)
    }
}

/// Decompresses `reader` if it begins with gzip's magic number.
///
/// # Errors
/// If the first bytes cannot be read.
pub fn decompressed<'a>(mut reader: impl BufRead + 'a) -> std::io::Result<Box<dyn Read + 'a>> {
    Ok(match reader.fill_buf()?.starts_with(&[0x1f, 0x8b]) {
        // All members up to the end of the file, so that bytes after the last are detected.
        true => Box::new(MultiGzDecoder::new(reader)),
        false => Box::new(reader),
    })
}
