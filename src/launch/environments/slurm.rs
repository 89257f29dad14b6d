//! SLURM's host lists and task counts, and detection of srun's tasks.

use collective::sampler::mix;

/// The first host of a node list: `node03` for `node[03-05,9],other`.
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

/// Number of tasks on node `node`, from a list such as `2(x3),1`: two on each of three nodes, then one.
pub fn tasks_on(list: &str, node: usize) -> Option<usize> {
    let mut skipped = 0;
    for part in list.trim().split(',') {
        let (tasks, times) = match part.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        skipped = usize::saturating_add(skipped, times);
        if node < skipped {
            return tasks.parse().ok();
        }
    }
    None
}

/// Whether this process is one of several tasks of `srun`.
///
/// The script of an `sbatch` job has `SLURM_PROCID=0` and `SLURM_NTASKS`, too, without being a task: only
/// srun sets `SLURM_STEP_NUM_TASKS`. A shell opened by `srun --pty` is interactive and not a task.
pub fn is_task(lookup: &impl Fn(&str) -> Option<String>) -> bool {
    let several = lookup("SLURM_STEP_NUM_TASKS")
        .and_then(|tasks| tasks.trim().parse().ok())
        .is_some_and(|tasks: usize| tasks > 1);
    several && lookup("SLURM_PROCID").is_some() && lookup("SLURM_PTY_PORT").is_none()
}

/// Whether this process is a task of srun with exactly one GPU that no other task has.
///
/// This holds for `--gpus-per-task=1` and `--gpu-bind=single:1`. The GPU's index is 0 in every such task.
pub fn binds_one_gpu(lookup: &impl Fn(&str) -> Option<String>, local_rank: usize) -> bool {
    let is = |name: &str, wanted: &str| lookup(name).is_some_and(|value| value.trim() == wanted);
    let visible = lookup("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let one = !visible.trim().is_empty() && !visible.contains(',');
    // Another launcher within a task shares the task's GPU between several ranks.
    let task = is_task(lookup) && is("SLURM_LOCALID", &local_rank.to_string());
    let resources = lookup("SLURM_TRES_PER_TASK").unwrap_or_default();
    let bound = is("SLURM_GPUS_PER_TASK", "1")
        || resources.split(',').any(|resource| matches!(resource.trim(), "gres/gpu=1" | "gres/gpu:1"))
        || ["single:1", "per_task:1"].iter().any(|binding| is("SLURM_GPU_BIND", binding));
    one && task && bound
}

/// The port that all ranks of a job derive from its id, 20000 to 32767.
///
/// The range is below the ports that Linux assigns to outgoing connections.
pub fn port_of(job: &str) -> u16 {
    // Equal in every build; the standard library's hasher is not guaranteed to be.
    let hash = job.bytes().fold(0, |hash, byte| mix(hash, byte.into()));
    20_000 + (hash % 12_768) as u16
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
