//! Rank and world size of this process, from the environment variables of torchrun, this crate's launcher,
//! mpirun, SLURM and Kubernetes.

mod init_method;
mod slurm;

use anyhow::{Context, Result, bail};

/// Rank and world size of this process, globally and on its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Environment {
    /// Rank over all machines.
    pub rank: usize,
    /// Rank on this machine.
    pub local_rank: usize,
    pub world_size: usize,
    /// Number of processes on this machine.
    pub local_world_size: usize,
    pub launcher: Launcher,
    /// Whether exactly one GPU is visible to this process, and to no other process.
    pub own_gpu: bool,
}

/// What started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// No launcher, or one that sets `RANK` and the like: torchrun, `burn-ddp launch`, Kubernetes' training
    /// operators.
    Variables,
    /// OpenMPI's mpirun.
    Mpirun,
    /// MPICH's and Intel MPI's mpiexec (Hydra), or another launcher with PMI.
    Pmi,
    /// SLURM's srun.
    Slurm,
}

impl Launcher {
    /// Variables with rank, local rank, world size and local world size.
    fn names(self) -> [&'static str; 4] {
        match self {
            Launcher::Variables => ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"],
            Launcher::Mpirun => [
                "OMPI_COMM_WORLD_RANK",
                "OMPI_COMM_WORLD_LOCAL_RANK",
                "OMPI_COMM_WORLD_SIZE",
                "OMPI_COMM_WORLD_LOCAL_SIZE",
            ],
            Launcher::Pmi => ["PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS"],
            // The last variable holds the counts of all nodes.
            Launcher::Slurm => {
                ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"]
            }
        }
    }

    /// The launcher whose variables are set.
    ///
    /// One launcher may have started another. The innermost counts, because its local ranks are correct.
    fn detect(lookup: &impl Fn(&str) -> Option<String>) -> Option<Self> {
        let set = |name: &str| lookup(name).is_some();
        if set("RANK") || set("LOCAL_RANK") {
            Some(Launcher::Variables)
        } else if set("OMPI_COMM_WORLD_RANK") {
            Some(Launcher::Mpirun)
        } else if set("PMI_RANK") && (set("MPI_LOCALRANKID") || !slurm::is_task(lookup)) {
            // srun sets PMI_RANK, too, where it serves PMI; only Hydra sets the local rank.
            Some(Launcher::Pmi)
        } else {
            slurm::is_task(lookup).then_some(Launcher::Slurm)
        }
    }
}

impl Environment {
    /// A world of one process.
    pub const SOLO: Environment = Environment {
        rank: 0,
        local_rank: 0,
        world_size: 1,
        local_world_size: 1,
        launcher: Launcher::Variables,
        own_gpu: false,
    };

    /// The launcher's variables, or `None` without a launcher.
    ///
    /// # Errors
    /// If a variable is missing, not a number or out of range. The error names it.
    pub fn detect() -> Result<Option<Self>> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// [`Environment::detect`] with `lookup` in place of the process's environment.
    ///
    /// # Errors
    /// Those of [`Environment::detect`].
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let number = |name: &str| -> Result<Option<usize>> {
            lookup(name)
                .map(|value| {
                    value.trim().parse().with_context(|| format!("{name}={value} is not a number from 0"))
                })
                .transpose()
        };
        let Some(launcher) = Launcher::detect(&lookup) else { return Ok(None) };
        let [rank_name, local_rank_name, world_name, local_world_name] = launcher.names();
        let rank = number(rank_name)?.with_context(|| {
            format!("{local_rank_name} is set but {rank_name} is not; a launcher sets both")
        })?;
        let world_size =
            number(world_name)?.with_context(|| format!("{rank_name} is set but {world_name} is not"))?;
        // Training operators of Kubernetes number the pods, and each pod is a machine.
        let pod = launcher == Launcher::Variables && lookup("KUBERNETES_SERVICE_HOST").is_some();
        let (one_rank, one_size) = if pod { (0, 1) } else { (rank, world_size) };
        let local_rank = number(local_rank_name)?.unwrap_or(one_rank);
        let local_world_size = match launcher {
            Launcher::Slurm => {
                let node = number("SLURM_NODEID")?.unwrap_or(0);
                lookup(local_world_name).and_then(|list| slurm::tasks_on(&list, node))
            }
            Launcher::Variables | Launcher::Mpirun | Launcher::Pmi => number(local_world_name)?,
        };
        let local_world_size =
            local_world_size.unwrap_or(if local_rank < one_size { one_size } else { world_size });
        for (name, value, bound_name, bound) in [
            (rank_name, rank, world_name, world_size),
            (local_rank_name, local_rank, local_world_name, local_world_size),
        ] {
            if value >= bound {
                bail!("{name}={value} must be below {bound_name}={bound}; ranks count from 0");
            }
        }
        if local_world_size > world_size {
            bail!("{local_world_name}={local_world_size} is more than {world_name}={world_size}");
        }
        let own_gpu = slurm::binds_one_gpu(&lookup, local_rank);
        Ok(Some(Environment { rank, local_rank, world_size, local_world_size, launcher, own_gpu }))
    }

    /// Whether this is rank 0, which prints and writes files.
    pub fn is_main(&self) -> bool {
        self.rank == 0
    }

    /// Whether this is local rank 0, which downloads for its machine.
    pub fn is_local_main(&self) -> bool {
        self.local_rank == 0
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What a step of 5 tasks on 3 nodes sees on its second node.
    const SRUN: &str = "SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_NTASKS=5 SLURM_STEP_NUM_TASKS=5 SLURM_STEP_TASKS_PER_NODE=2(x2),1 SLURM_JOB_ID=7";

    /// Looks variables up in `NAME=VALUE NAME=VALUE…`.
    pub fn lookup(vars: &str) -> impl Fn(&str) -> Option<String> {
        move |name| vars.split(' ').find_map(|var| Some(var.strip_prefix(name)?.strip_prefix('=')?.into()))
    }

    fn detect(vars: &str) -> Result<Option<Environment>> {
        Environment::from_lookup(lookup(vars))
    }

    #[test]
    fn ranks_and_sizes_are_those_of_the_launcher() {
        use Launcher::{Mpirun, Pmi, Slurm, Variables};
        let mpirun = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2";
        let hydra = "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2";
        let pod = "RANK=3 WORLD_SIZE=4 KUBERNETES_SERVICE_HOST=10.0.0.1";
        for (vars, wanted) in [
            ("", None),
            ("RANK=5 LOCAL_RANK=1 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4", Some((Variables, [5, 1, 8, 4]))),
            // One machine needs no local variables.
            ("RANK=1 WORLD_SIZE=2", Some((Variables, [1, 1, 2, 2]))),
            (mpirun, Some((Mpirun, [3, 1, 4, 2]))),
            (&*format!("{mpirun} RANK=0 WORLD_SIZE=1"), Some((Variables, [0, 0, 1, 1]))),
            (hydra, Some((Pmi, [3, 1, 4, 2]))),
            // Hydra starts one proxy a node through srun: the ranks are Hydra's.
            (
                &*format!("{hydra} SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0"),
                Some((Pmi, [3, 1, 4, 2])),
            ),
            (SRUN, Some((Slurm, [3, 1, 5, 2]))),
            (&*format!("{SRUN} PMI_RANK=3 PMI_SIZE=5"), Some((Slurm, [3, 1, 5, 2]))),
            // An sbatch script, a shell and a single task are no ranks.
            ("SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=4 SLURM_JOB_ID=7", None),
            (&*format!("{SRUN} SLURM_PTY_PORT=40000"), None),
            ("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1", None),
            // A pod is a machine, unless a launcher inside it, or the user, sets the local variables.
            (pod, Some((Variables, [3, 0, 4, 1]))),
            (&*format!("{pod} LOCAL_RANK=1 LOCAL_WORLD_SIZE=2"), Some((Variables, [3, 1, 4, 2]))),
        ] {
            let wanted = wanted.map(|(launcher, [rank, local_rank, world_size, local_world_size])| {
                Environment { rank, local_rank, world_size, local_world_size, launcher, own_gpu: false }
            });
            assert_eq!(detect(vars).ok(), Some(wanted), "{vars}");
        }
    }

    #[test]
    fn a_task_with_a_gpu_of_its_own_is_recognised() {
        for (vars, own) in [
            ("CUDA_VISIBLE_DEVICES=0 SLURM_GPUS_PER_TASK=1", true),
            ("CUDA_VISIBLE_DEVICES=0 SLURM_TRES_PER_TASK=cpu=4,gres/gpu=1", true),
            ("CUDA_VISIBLE_DEVICES=0 SLURM_GPU_BIND=single:1", true),
            ("CUDA_VISIBLE_DEVICES=0", false),
            ("CUDA_VISIBLE_DEVICES=0,1 SLURM_GPUS_PER_TASK=1", false),
            ("CUDA_VISIBLE_DEVICES=0 SLURM_GPUS_PER_TASK=2", false),
            // torchrun within a task: the GPU is the task's, which has several ranks.
            (
                "CUDA_VISIBLE_DEVICES=0 SLURM_GPUS_PER_TASK=1 RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2",
                false,
            ),
        ] {
            let found = detect(&format!("{SRUN} {vars}")).ok().flatten();
            assert_eq!(found.map(|found| found.own_gpu), Some(own), "{vars}");
        }
    }

    #[test]
    fn errors_name_the_variable() {
        for (vars, named) in [
            ("RANK=x WORLD_SIZE=2", "RANK=x"),
            ("RANK=0", "WORLD_SIZE"),
            ("LOCAL_RANK=0", "RANK"),
            ("RANK=2 WORLD_SIZE=2", "RANK=2"),
            ("RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=3", "LOCAL_WORLD_SIZE=3"),
            ("RANK=3 WORLD_SIZE=8 LOCAL_RANK=3 LOCAL_WORLD_SIZE=2", "LOCAL_RANK=3"),
        ] {
            let error = detect(vars).expect_err("must be refused").to_string();
            assert!(error.contains(named), "{error} should name {named}");
        }
    }
}
