//! SLURM's ways to write host lists and task counts, and whether a process is one of srun's tasks.

use std::hash::Hasher;

/// The first host of a node list: `node[03-05,9],other` is headed by `node03`.
///
/// The format is that of slurm's hostlist: prefixes with bracketed lists of numbers and ranges,
/// several brackets in a name allowed.
pub fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    while let Some(position) = rest.find(['[', ',']) {
        host.push_str(&rest[..position]);
        if rest[position..].starts_with(',') {
            rest = "";
            break;
        }
        let (inside, after) = rest[position + 1..].split_once(']')?;
        let number = inside.split([',', '-']).next().filter(|number| !number.is_empty())?;
        host.push_str(number);
        rest = after;
    }
    host.push_str(rest);
    (!host.is_empty()).then_some(host)
}

/// Tasks on node number `node`, from a list such as `2(x3),1`: two on each of three nodes, then one.
pub fn tasks_on(list: &str, node: usize) -> Option<usize> {
    let mut skipped = 0;
    for part in list.trim().split(',') {
        let (tasks, times) = match part.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        if node < skipped + times {
            return tasks.parse().ok();
        }
        skipped += times;
    }
    None
}

/// Whether the variables are those of one of several tasks that `srun` started.
///
/// The script of an `sbatch` job has `SLURM_PROCID=0` and `SLURM_NTASKS`, too, without being a task:
/// only srun sets the step's own `SLURM_STEP_NUM_TASKS`. And a shell that `srun --pty` opened is for
/// somebody to work in.
pub fn is_task(lookup: &impl Fn(&str) -> Option<String>) -> bool {
    let several = lookup("SLURM_STEP_NUM_TASKS")
        .and_then(|tasks| tasks.trim().parse().ok())
        .is_some_and(|tasks: usize| tasks > 1);
    several && lookup("SLURM_PROCID").is_some() && lookup("SLURM_PTY_PORT").is_none()
}

/// A port that all ranks of a job derive from its name, 20000 to 32767: below those that Linux gives
/// to outgoing connections.
pub fn port_of(job: &str) -> u16 {
    // FNV-1a: the same in every build, which the standard library's hasher does not promise.
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    hash.write(job.as_bytes());
    20_000 + (hash.finish() % 12_768) as u16
}

struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_lists_are_headed_by_their_first_host() {
        for (list, first) in [
            ("node7", "node7"),
            ("a,b", "a"),
            ("gnode[10,20,25,37]", "gnode10"),
            ("node[003-005,9],other", "node003"),
            ("rack[1-2]-node[04-07].lan", "rack1-node04.lan"),
            ("x[1-3],y", "x1"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(first), "{list}");
        }
        for broken in ["", "node[", "node[]", ","] {
            assert_eq!(first_host(broken), None, "{broken}");
        }
    }

    #[test]
    fn task_counts_are_unfolded() {
        assert_eq!(
            (0..5).map(|n| tasks_on("2(x3),1", n)).collect::<Vec<_>>(),
            [Some(2), Some(2), Some(2), Some(1), None]
        );
        assert_eq!(tasks_on("4", 0), Some(4));
        assert_eq!(tasks_on("x", 0), None);
        assert_eq!(tasks_on("2(x3", 0), None);
    }

    #[test]
    fn ports_stay_in_their_range_and_differ() {
        let ports: Vec<u16> = (0..1000).map(|job| port_of(&job.to_string())).collect();
        assert!(ports.iter().all(|port| (20_000..32_768).contains(port)));
        assert!(ports.windows(2).filter(|pair| pair[0] == pair[1]).count() < 5);
        assert_eq!(port_of("1.0"), port_of("1.0"));
    }
}
