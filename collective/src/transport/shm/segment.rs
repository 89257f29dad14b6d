//! The shared memory of a group of processes: made, found, checked and mapped.

use crate::{
    Error, Result,
    transport::local::{
        check_world,
        region::{Header, Memory, bytes},
    },
};
use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    ptr::{self, NonNull},
    sync::atomic::Ordering::Relaxed,
};

/// First word of the memory; changes with its layout and with what ranks write there.
const MAGIC: u64 = u64::from_le_bytes(*b"ddpshm02");

/// A group's memory, mapped, not yet joined.
#[derive(Debug)]
pub struct ShmSegment {
    mapping: Mapping,
    descriptor: Descriptor,
    name: String,
}

/// Keeps the memory open for others, until dropped.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub world: usize,
    _file: File,
}

impl ShmSegment {
    /// Makes the memory for `world` ranks.
    ///
    /// # Errors
    /// If the world is empty or too large, or the system refuses the memory.
    pub fn create(world: usize) -> Result<Self> {
        check_world(world)?;
        let len = bytes(world);
        let file = memfd().map_err(|e| Error::io("making shared memory (memfd_create)", &e))?;
        let refused = |e: io::Error| Error::io(format!("reserving {len} bytes of shared memory"), &e);
        file.set_len(len as u64).map_err(refused)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: sealing an own descriptor; no memory is passed.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
            return Err(refused(io::Error::last_os_error()));
        }
        let mapping = Mapping::new(&file, len)?;
        let nonce: [u64; 2] = rand::random();
        for (shared, word) in mapping.header().identity.iter().zip([MAGIC, world as u64, nonce[0], nonce[1]])
        {
            shared.store(word, Relaxed);
        }
        let name = format!(
            "/proc/{}/fd/{}#{:016x}{:016x}",
            std::process::id(),
            file.as_raw_fd(),
            nonce[0],
            nonce[1]
        );
        Ok(ShmSegment { mapping, descriptor: Descriptor { world, _file: file }, name })
    }

    /// Opens the memory that another process of this machine and user made under `name`.
    ///
    /// # Errors
    /// If there is none, because its maker has ended or runs on another machine, or if it is not
    /// the memory that was meant.
    pub fn open(name: &str, world: usize) -> Result<Self> {
        check_world(world)?;
        let invalid = |why: &str| Error::Invalid(format!("shared memory {name:?}: {why}"));
        let (path, nonce) = parse(name).ok_or_else(|| invalid("not a name that rank 0 gave"))?;
        let failed = |e: io::Error| Error::io(format!("opening the shared memory {path} of rank 0"), &e);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)
            .map_err(failed)?;
        // The path may by now be any file of that process, or of another: look before mapping.
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() || metadata.len() != bytes(world) as u64 {
            return Err(invalid("its size is not that of a group of this size"));
        }
        let mapping = Mapping::new(&file, bytes(world))?;
        let found: [u64; 4] = std::array::from_fn(|i| mapping.header().identity[i].load(Relaxed));
        if found != [MAGIC, world as u64, nonce[0], nonce[1]] {
            return Err(invalid("it is not the memory of this group, or of another version"));
        }
        Ok(ShmSegment { mapping, descriptor: Descriptor { world, _file: file }, name: name.to_string() })
    }

    /// What other ranks of this machine pass to [`ShmSegment::open`]. Of use until the rank that
    /// made the memory has connected.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn into_parts(self) -> (Mapping, Descriptor) {
        (self.mapping, self.descriptor)
    }
}

/// Takes `/proc/<pid>/fd/<number>#<nonce>` apart, and nothing else.
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
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // Kernels before 6.3 do not know the third flag; some of those after insist on it.
    for flags in [flags | libc::MFD_NOEXEC_SEAL, flags] {
        // SAFETY: a constant C string; the descriptor that comes back is nobody else's.
        let fd = unsafe { libc::memfd_create(c"burn-ddp".as_ptr(), flags) };
        if fd >= 0 {
            // SAFETY: as above.
            return Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Err(io::Error::last_os_error())
}

/// Memory mapped from a file, until dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn new(file: &File, len: usize) -> Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        match NonNull::new(base.cast::<u8>()) {
            Some(address) if base != libc::MAP_FAILED => Ok(Mapping { base: address, len }),
            _ => Err(Error::io(format!("mapping {len} bytes of shared memory"), &io::Error::last_os_error())),
        }
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping begins with a header and is longer; all of its fields are atomics.
        unsafe { self.base.cast().as_ref() }
    }
}

// SAFETY: owns its mapping, which is page-aligned and of this length. A file that could shrink is
// no danger: the creator seals it, and `open` finds the creator's nonce in it.
unsafe impl Memory for Mapping {
    fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: an address; who may read and write there is `Member`'s business.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the address and length that `mmap` gave.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_descriptor_sees_the_same_memory() {
        let made = ShmSegment::create(3).unwrap();
        let opened = ShmSegment::open(made.name(), 3).unwrap();
        made.mapping.header().failed.store(77, Relaxed);
        assert_eq!(opened.mapping.header().failed.load(Relaxed), 77);
    }

    #[test]
    fn nothing_else_is_opened() {
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
    fn worlds_are_bounded() {
        assert!(ShmSegment::create(0).is_err());
        assert!(ShmSegment::create(1 << 20).is_err());
    }
}
