//! The init method for launchers that do not set one.

use super::{Environment, Launcher, slurm};
use anyhow::{Context, Result, bail};
use collective::{InitMethod, Transport, address};

impl Environment {
    /// The init method that follows from the launcher and the environment.
    ///
    /// It is MPI if MPI started the ranks and this build or `transport` uses it, otherwise the address in
    /// `MASTER_ADDR` and `MASTER_PORT`. Under mpirun and srun, the address defaults to the first machine and
    /// the port is derived from the job's id.
    ///
    /// # Errors
    /// If the address or port is unknown. The error names the variable to set.
    pub fn init_method(&self, transport: Transport) -> Result<InitMethod> {
        let mpi = transport == Transport::Mpi || (self.launcher == Launcher::Mpirun && cfg!(feature = "mpi"));
        if mpi && self.launcher != Launcher::Variables {
            return Ok(InitMethod::Mpi);
        }
        self.meet(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn meet(&self, lookup: impl Fn(&str) -> Option<String>) -> Result<InitMethod> {
        let several = self.local_world_size < self.world_size;
        let (address, port) = (lookup("MASTER_ADDR"), lookup("MASTER_PORT"));
        let (host, job) = match self.launcher {
            Launcher::Variables => return Ok(InitMethod::Env),
            Launcher::Mpirun => {
                (None, lookup("PMIX_NAMESPACE").or_else(|| lookup("OMPI_MCA_ess_base_jobid")))
            }
            Launcher::Pmi => (None, lookup("PMI_JOBID").or_else(|| if several { None } else { parent() })),
            Launcher::Slurm => {
                let lists = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
                let list = lists.iter().find_map(|name| lookup(name));
                let step = lookup("SLURM_STEP_ID").unwrap_or_default();
                let job = lookup("SLURM_JOB_ID").map(|job| format!("{job}.{step}"));
                (list.and_then(|list| slurm::first_host(&list)), job)
            }
        };
        let host = match address {
            Some(address) => address,
            None if !several => "127.0.0.1".into(),
            None => host.context(
                "the ranks run on several machines and the address of rank 0 is unknown: set MASTER_ADDR to its machine on all ranks (mpirun -x MASTER_ADDR=…, mpiexec -genv MASTER_ADDR …)",
            )?,
        };
        let port = match (port, job) {
            (Some(port), _) => match port.trim().parse::<u16>() {
                Ok(port) => port,
                Err(_) => bail!("MASTER_PORT={port} is not a port, 1 to 65535"),
            },
            (None, Some(job)) => slurm::port_of(&job),
            (None, None) => {
                bail!("the launcher sets no job id to derive a port from: set MASTER_PORT on all ranks")
            }
        };
        Ok(InitMethod::Tcp(address::join(&host, port)))
    }
}

/// Hydra sets no job id, but one of its processes starts all ranks of a machine.
fn parent() -> Option<String> {
    Some(format!("parent {}", std::os::unix::process::parent_id()))
}

#[cfg(test)]
mod tests {
    use super::{super::tests::lookup, *};

    #[test]
    fn ranks_meet_on_the_first_machine_or_where_they_are_told() {
        use Launcher::{Mpirun, Pmi, Slurm, Variables};
        let step = "SLURM_STEP_NODELIST=gpu[07-08] SLURM_JOB_ID=12 SLURM_STEP_ID=3";
        let (step_port, job_port) = (slurm::port_of("12.3"), slurm::port_of("612040705"));
        for (launcher, local_world_size, vars, wanted) in [
            (Slurm, 2, step, &*format!("tcp://gpu07:{step_port}")),
            (Slurm, 4, step, &*format!("tcp://127.0.0.1:{step_port}")),
            (Slurm, 2, &*format!("{step} MASTER_ADDR=fd00::7 MASTER_PORT=5"), "tcp://[fd00::7]:5"),
            (Mpirun, 4, "PMIX_NAMESPACE=612040705", &*format!("tcp://127.0.0.1:{job_port}")),
            (Variables, 4, "", "env://"),
            (Mpirun, 2, "PMIX_NAMESPACE=612040705", "set MASTER_ADDR"),
            (Mpirun, 4, "", "set MASTER_PORT"),
            (Pmi, 4, "MASTER_PORT=x", "MASTER_PORT=x"),
        ] {
            let environment = Environment { world_size: 4, local_world_size, launcher, ..Environment::SOLO };
            match environment.meet(lookup(vars)) {
                Ok(method) => assert_eq!(method.to_string(), wanted, "{launcher:?} {vars}"),
                Err(error) => assert!(error.to_string().contains(wanted), "{error} should name {wanted}"),
            }
        }
    }
}
