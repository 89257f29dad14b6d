//! Transport between processes of one machine, over shared memory.
//!
//! The memory is a sealed `memfd`. It has no name, so that nothing is left behind however the processes end;
//! it is not limited by the size of `/dev/shm` (64 MiB in a default container); and it cannot be truncated.
//! Rank 0 creates it and publishes its location. The others open it through `/proc`, which requires the same
//! user. When all have opened it, they join, and the last descriptor is closed.

use super::local::{
    LocalRank, check_world,
    region::{Region, bytes},
};
use crate::{Error, Result};
use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::{
    fs::{File, OpenOptions},
    io,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    sync::{Arc, atomic::Ordering::Relaxed},
};

/// First word of the memory; changes with the layout and content.
const MAGIC: u64 = u64::from_le_bytes(*b"ddpshm06");

/// A group's memory, mapped but not joined.
#[derive(Debug)]
pub struct ShmSegment {
    region: Region,
    /// Keeps the memory open for other processes until dropped.
    _file: File,
    name: String,
}

impl ShmSegment {
    /// Creates the memory for `world` ranks.
    ///
    /// # Errors
    /// If the world is empty or too large, or the system refuses the memory.
    pub fn create(world: usize) -> Result<Self> {
        check_world(world)?;
        let len = bytes(world);
        let file = memfd().map_err(|e| Error::io("create shared memory (memfd_create)", &e))?;
        let refused = |e: io::Error| Error::io(format!("reserving {len} bytes of shared memory"), &e);
        file.set_len(len as u64).map_err(refused)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|e| refused(e.into()))?;
        let region = Region::map(Some(&file), world, "shm")?;
        let nonce: [u64; 2] = rand::random();
        for (shared, word) in region.header().identity.iter().zip([MAGIC, world as u64, nonce[0], nonce[1]]) {
            shared.store(word, Relaxed);
        }
        let name = format!(
            "/proc/{}/fd/{}#{:016x}{:016x}",
            std::process::id(),
            file.as_raw_fd(),
            nonce[0],
            nonce[1]
        );
        Ok(ShmSegment { region, _file: file, name })
    }

    /// Opens the memory that another process of this machine and user has created under `name`.
    ///
    /// # Errors
    /// If it does not exist, because its creator has ended or runs on another machine, or it is not the
    /// memory of this group.
    pub fn open(name: &str, world: usize) -> Result<Self> {
        check_world(world)?;
        let invalid = |why: &str| Error::Invalid(format!("shared memory {name:?}: {why}"));
        let (path, nonce) = parse(name).ok_or_else(|| invalid("not a name that rank 0 gave"))?;
        let failed = |e: io::Error| Error::io(format!("opening the shared memory {path} of rank 0"), &e);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags((OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32)
            .open(path)
            .map_err(failed)?;
        // The path may refer to another file by now, which is checked before mapping.
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() || metadata.len() != bytes(world) as u64 {
            return Err(invalid("its size is not that of a group of this size"));
        }
        let region = Region::map(Some(&file), world, "shm")?;
        let found: [u64; 4] = std::array::from_fn(|i| region.header().identity[i].load(Relaxed));
        if found != [MAGIC, world as u64, nonce[0], nonce[1]] {
            return Err(invalid("it is not the memory of this group, or of another version"));
        }
        Ok(ShmSegment { region, _file: file, name: name.to_string() })
    }

    /// The name for [`ShmSegment::open`] in other ranks, valid until the creator has joined.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Joins the group as `rank`, after all ranks have opened the memory. No other process can open it from then on.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the rank is taken or not in the world.
    pub fn join(self, rank: usize) -> Result<LocalRank> {
        LocalRank::join(Arc::new(self.region), rank)
    }
}

/// Parses `/proc/<pid>/fd/<number>#<nonce>`.
pub(crate) fn parse(name: &str) -> Option<(&str, [u64; 2])> {
    let (path, nonce) = name.split_once('#')?;
    let (pid, fd) = path.strip_prefix("/proc/")?.split_once("/fd/")?;
    let number = |s: &str| s.len() < 12 && !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !number(pid) || !number(fd) || nonce.len() != 32 || !nonce.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let word = |s| u64::from_str_radix(s, 16).ok();
    Some((path, [word(&nonce[..16])?, word(&nonce[16..])?]))
}

fn memfd() -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 reject the third flag; some later ones require it.
    let fd = memfd_create(c"burn-ddp", flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| memfd_create(c"burn-ddp", flags))?;
    Ok(File::from(fd))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_names_are_rejected() {
        let made = ShmSegment::create(2).unwrap();
        let name = made.name().to_string();
        let refusal = |name: &str, world| ShmSegment::open(name, world).unwrap_err().to_string();
        assert!(refusal(&name, 3).contains("size"));
        let (path, nonce) = name.split_once('#').unwrap();
        let other = if nonce.starts_with('0') { "1" } else { "0" };
        assert!(refusal(&format!("{path}#{other}{}", &nonce[1..]), 2).contains("not the memory"));
        for name in ["", "/etc/passwd", path, "/proc/1/../fd/3#0", &format!("/proc/+1/fd/3#{nonce}")] {
            assert!(refusal(name, 2).contains("not a name"), "{name}");
        }
        drop(made);
        assert!(refusal(&name, 2).contains("rank 0"));
    }

    #[test]
    fn the_size_is_sealed() {
        let made = ShmSegment::create(2).unwrap();
        let path = made.name().split_once('#').unwrap().0;
        let file = OpenOptions::new().write(true).open(path).unwrap();
        assert!(file.set_len(0).is_err());
    }

    #[test]
    fn two_processes_cannot_have_the_same_rank() {
        let segment = ShmSegment::create(2).unwrap();
        let twin = ShmSegment::open(segment.name(), 2).unwrap();
        let _joined = segment.join(1).unwrap();
        let error = twin.join(1).unwrap_err().to_string();
        assert!(error.contains("two processes of this machine have rank 1"), "{error}");
    }

    #[test]
    fn worlds_are_bounded() {
        assert!(ShmSegment::create(0).is_err());
        assert!(ShmSegment::create(1 << 20).is_err());
    }
}
