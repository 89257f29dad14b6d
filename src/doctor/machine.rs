//! Cores, memory, shared memory, limits and disk.

use super::{Finding, size};
use crate::launch::cores;
use rustix::process::{Resource, getrlimit};
use std::fs;

/// Memory a rank takes at least: the program, the data and a small network.
const A_RANK: u64 = 512 << 20;
/// Open files that a rank of a large world may need: a connection to each other rank, and data.
const FILES: u64 = 1024;
/// Below this, NCCL's segments for a few GPUs do not fit; it is what Docker gives.
const SHARED: u64 = 65 << 20;

pub(super) fn check(say: &mut impl FnMut(Finding)) {
    say(core_count());
    say(memory());
    say(shared_memory());
    say(files());
    say(disk());
}

fn core_count() -> Finding {
    // SAFETY: only returns a number.
    let machine = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as usize;
    let (name, usable) = ("cores", cores());
    if usable < machine {
        let found = format!("{usable} of the machine's {machine}");
        Finding::note(
            name,
            found,
            "more only if the container or scheduler gives more (--cpus, --cpus-per-task)",
        )
    } else {
        Finding::ok(name, usable.to_string())
    }
}

/// The number of KiB that `/proc/meminfo` gives for `key`, in bytes.
fn meminfo(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(key))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
}

fn memory() -> Finding {
    let name = "memory";
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let (Some(total), Some(free)) = (meminfo(&text, "MemTotal:"), meminfo(&text, "MemAvailable:")) else {
        return Finding::note(name, "unknown", "this system has no /proc/meminfo");
    };
    // A container's own limit, if it has one ("max" is no number).
    let cgroup = |file: &str| -> Option<u64> {
        fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok()?.trim().parse().ok()
    };
    let left = cgroup("memory.max").map(|max| max.saturating_sub(cgroup("memory.current").unwrap_or(0)));
    let free = left.map_or(free, |left| free.min(left));
    let found = format!("{} free of {}", size(free), size(total));
    if free < A_RANK {
        Finding::fail(name, found, format!("a rank needs about {}: end other programs", size(A_RANK)))
    } else {
        Finding::ok(name, found)
    }
}

/// Free and total bytes of the file system of a folder.
fn space(folder: &str) -> Option<(u64, u64)> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    Some((stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize))
}

fn shared_memory() -> Finding {
    let name = "shared memory";
    match space("/dev/shm") {
        None => Finding::note(name, "no /dev/shm", "NCCL wants one; ranks on the CPU do without"),
        Some((free, total)) => {
            let found = format!("/dev/shm: {} free of {}", size(free), size(total));
            if free < SHARED {
                let advice = "too little for NCCL (ranks on the CPU do without): docker run --shm-size=1g, or an emptyDir of medium Memory in Kubernetes";
                Finding::note(name, found, advice)
            } else {
                Finding::ok(name, found)
            }
        }
    }
}

fn files() -> Finding {
    let name = "open files";
    // None is no limit.
    match getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) {
        limit if limit >= FILES => Finding::ok(name, format!("up to {limit} a process")),
        limit if limit >= 256 => Finding::note(
            name,
            format!("up to {limit} a process"),
            "a world of hundreds of ranks needs more: ulimit -n 4096",
        ),
        limit => Finding::fail(name, format!("up to {limit} a process"), "raise it: ulimit -n 4096"),
    }
}

fn disk() -> Finding {
    let name = "disk";
    let writable = tempfile_here();
    match (writable, space(".")) {
        (Err(error), _) => Finding::note(
            name,
            format!("this folder cannot be written: {error}"),
            "runs are kept in ./runs unless --run-dir says otherwise",
        ),
        (Ok(()), Some((free, _))) if free < (100 << 20) => Finding::note(
            name,
            format!("{} free here", size(free)),
            "a run leaves 5 MB and more; use --run-dir",
        ),
        (Ok(()), Some((free, _))) => Finding::ok(name, format!("{} free in this folder", size(free))),
        (Ok(()), None) => Finding::ok(name, "this folder can be written"),
    }
}

fn tempfile_here() -> std::io::Result<()> {
    let path = format!(".burn-ddp-doctor-{}", std::process::id());
    fs::write(&path, b"x")?;
    fs::remove_file(&path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_bytes() {
        let text = "MemTotal:       1024 kB\nMemAvailable:    512 kB\n";
        assert_eq!(meminfo(text, "MemAvailable:"), Some(512 << 10));
        assert_eq!(meminfo(text, "Nothing:"), None);
    }

    #[test]
    fn space_is_that_of_the_folder() {
        let (free, total) = space("/").expect("a root folder");
        assert!(free <= total && total > 0);
        assert_eq!(space("/no/such/folder"), None);
    }
}
