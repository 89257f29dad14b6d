//! Cores, memory, shared memory, limits and disk.

use super::Finding;
use crate::{
    device::{binary_size, host_memory},
    launch::cores,
};
use rustix::{
    fs::{Access, access, statvfs},
    process::{Resource, getrlimit},
};

/// Minimum memory of a rank in bytes: program, data and a small network.
const RANK_MEMORY: u64 = 512 << 20;
/// Open files that a rank of a large world may need: one connection per rank, and data files.
const OPEN_FILES: u64 = 1024;
/// Shared memory in bytes that NCCL needs for a few GPUs; slightly more than Docker's default.
const SHARED_MEMORY: u64 = 65 << 20;

pub(super) fn check(report: &mut impl FnMut(Finding)) {
    report(core_count());
    report(memory());
    report(shared_memory());
    report(files());
    report(disk());
}

fn core_count() -> Finding {
    // SAFETY: only returns a number.
    let machine = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as usize;
    let (name, usable) = ("cores", cores());
    if usable < machine {
        let found = format!("{usable} of {machine} in this machine");
        Finding::note(name, found, "the container or scheduler limits the cores (--cpus, --cpus-per-task)")
    } else {
        Finding::ok(name, usable.to_string())
    }
}

fn memory() -> Finding {
    let name = "memory";
    let Some((free, total)) = host_memory() else {
        return Finding::note(name, "unknown", "this system has no /proc/meminfo");
    };
    let advice = format!("a rank needs about {}: close other programs", binary_size(RANK_MEMORY));
    let found = format!("{} free of {}", binary_size(free), binary_size(total));
    Finding::ok(name, found).fail_if(free < RANK_MEMORY, advice)
}

/// Free and total bytes of the file system of a folder.
fn space(folder: &str) -> Option<(u64, u64)> {
    let stat = statvfs(folder).ok()?;
    Some((stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize))
}

fn shared_memory() -> Finding {
    let name = "shared memory";
    let Some((free, total)) = space("/dev/shm") else {
        return Finding::note(name, "no /dev/shm", "NCCL needs it; CPU ranks do not");
    };
    let advice = "too small for NCCL (not needed by CPU ranks): use docker run --shm-size=1g, or an emptyDir with medium Memory in Kubernetes";
    let found = format!("/dev/shm: {} free of {}", binary_size(free), binary_size(total));
    Finding::ok(name, found).note_if(free < SHARED_MEMORY, advice)
}

fn files() -> Finding {
    let name = "open files";
    // `None` means unlimited.
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    Finding::ok(name, format!("at most {limit} per process"))
        .note_if(limit < OPEN_FILES, "hundreds of ranks need more: ulimit -n 4096")
        .fail_if(limit < 256, "raise the limit: ulimit -n 4096")
}

fn disk() -> Finding {
    let name = "disk";
    if let Err(error) = access(".", Access::WRITE_OK) {
        let advice = "runs are written to ./runs; set another folder with --run-dir";
        return Finding::note(name, format!("this folder is not writable: {error}"), advice);
    }
    let Some((free, _)) = space(".") else { return Finding::ok(name, "this folder is writable") };
    Finding::ok(name, format!("{} free in this folder", binary_size(free)))
        .note_if(free < (100 << 20), "a run needs 5 MB or more; set another folder with --run-dir")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_is_that_of_the_folder() {
        let (free, total) = space("/").expect("a root folder");
        assert!(free <= total && total > 0);
        assert_eq!(space("/no/such/folder"), None);
    }
}
