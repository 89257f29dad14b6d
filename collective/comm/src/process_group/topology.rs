//! Placement of a job's ranks on machines, and the choice of a group's transport.

use crate::{
    Error, Options, Result,
    communicator::{Communicator, Solo},
    rendezvous::{control::Control, store::HashStore},
    transport::{
        Transport, mpi,
        tcp::{ConnectionPool, Machines, Tcp},
        thread::ThreadGroups,
    },
};
use std::sync::Arc;

/// Placement of the ranks of a job; shared by all groups of one rank.
#[derive(Debug)]
pub(super) struct Topology {
    pub ranks: Ranks,
    pub options: Options,
}

/// The ranks of a job as one of them reaches the others. The connection to the server is dropped first, so that the
/// exit is announced before the data connections close.
#[derive(Debug)]
pub(super) enum Ranks {
    /// A world of one.
    Solo(Arc<HashStore>),
    /// Threads of one process.
    Threads(Arc<Control>, Arc<ThreadGroups>),
    /// Processes that have completed the rendezvous.
    Processes(Arc<Control>, Arc<ConnectionPool>),
}

/// Chooses and connects the transport of a new group of processes.
struct TransportBuilder<'a> {
    group: u64,
    /// World ranks.
    members: &'a [usize],
    /// This rank within the group.
    rank: usize,
    control: &'a Arc<Control>,
    pool: &'a Arc<ConnectionPool>,
    options: &'a Options,
}

impl Topology {
    /// This rank's connection to the server, unless it is alone.
    pub fn control(&self) -> Option<&Arc<Control>> {
        match &self.ranks {
            Ranks::Solo(_) => None,
            Ranks::Threads(control, _) | Ranks::Processes(control, _) => Some(control),
        }
    }

    /// The transport of a group of `members`, given by world rank, in which this rank is number `rank`.
    ///
    /// # Errors
    /// If the transport cannot be used or created.
    pub fn connect(&self, group: u64, members: &[usize], rank: usize) -> Result<Box<dyn Communicator>> {
        match &self.ranks {
            _ if members.len() == 1 => Ok(Box::new(Solo)),
            Ranks::Solo(_) => Ok(Box::new(Solo)),
            Ranks::Threads(_, groups) => Ok(Box::new(groups.join(group, rank, members.len())?)),
            Ranks::Processes(control, pool) => {
                TransportBuilder { group, members, rank, control, pool, options: &self.options }.open()
            }
        }
    }
}

impl TransportBuilder<'_> {
    fn open(&self) -> Result<Box<dyn Communicator>> {
        let machines = self.ranks_by_machine();
        let one = machines.len() == 1;
        match self.options.transport {
            Transport::Tcp => Ok(Box::new(self.tcp(0, &self.everyone()))),
            Transport::Mpi => mpi::connect(self.group, self.members, self.rank, self.options.join_timeout()),
            Transport::Thread => Err(Error::Invalid(
                "transport thread is for ranks in one process, which ProcessGroup::threads makes; choose auto, shm, tcp or mpi".into(),
            )),
            Transport::Shm if !one => Err(Error::Invalid(format!(
                "transport shm is for one machine, and this group is on {}; choose auto or tcp",
                machines.len()
            ))),
            Transport::Shm => self.shm(1, &self.everyone())?.map_err(|why| {
                Error::Invalid(format!("transport shm does not work here: {why}; choose auto or tcp"))
            }),
            Transport::Auto | Transport::Nccl if one => self.local(1, &self.everyone()),
            Transport::Auto | Transport::Nccl if machines.len() == self.members.len() => {
                Ok(Box::new(self.tcp(0, &self.everyone())))
            }
            Transport::Auto | Transport::Nccl => self.several(&machines),
        }
    }

    fn everyone(&self) -> Vec<usize> {
        (0..self.members.len()).collect()
    }

    /// Ranks of the group by machine, ordered by each machine's first rank.
    fn ranks_by_machine(&self) -> Vec<Vec<usize>> {
        let machine = |rank: usize| self.control.members.machine(self.members[rank]);
        let mut machines: Vec<Vec<usize>> = Vec::new();
        for rank in self.everyone() {
            match machines.iter_mut().find(|ranks| machine(ranks[0]) == machine(rank)) {
                Some(ranks) => ranks.push(rank),
                None => machines.push(vec![rank]),
            }
        }
        machines
    }

    fn several(&self, machines: &[Vec<usize>]) -> Result<Box<dyn Communicator>> {
        let first: Vec<usize> = machines.iter().map(|ranks| ranks[0]).collect();
        let here = machines.iter().position(|ranks| ranks.contains(&self.rank)).unwrap_or_default();
        let local: Box<dyn Communicator> = match machines[here].as_slice() {
            [_] => Box::new(Solo),
            // A different number for every machine.
            ranks => self.local(3 + here as u64, ranks)?,
        };
        let leaders: Option<Box<dyn Communicator>> =
            if first.contains(&self.rank) { Some(Box::new(self.tcp(2, &first))) } else { None };
        let machines = Machines { here: machines[here].clone(), local, first, leaders };
        Ok(Box::new(self.tcp(0, &self.everyone()).with_machines(machines)))
    }

    /// Shared memory if all `ranks` can use it, TCP if not.
    fn local(&self, part: u64, ranks: &[usize]) -> Result<Box<dyn Communicator>> {
        Ok(self.shm(part, ranks)?.unwrap_or_else(|_| Box::new(self.tcp(part, ranks))))
    }

    /// TCP among some ranks of the group. `part` distinguishes the connections of a group's parts.
    fn tcp(&self, part: u64, ranks: &[usize]) -> Tcp {
        let member = |rank: &usize| {
            let member = self.members[*rank];
            (member, self.control.members.data(member))
        };
        let rank = ranks.iter().position(|rank| *rank == self.rank).unwrap_or_default();
        let members = ranks.iter().map(member).collect();
        let group = self.group.wrapping_add(part << 32);
        Tcp::new(self.pool.clone(), group, rank, members, self.options.tcp_algorithm)
    }

    /// Shared memory among some ranks of the group; the inner error is the reason why it cannot be used.
    ///
    /// The first rank creates the memory, the others open it and report, and the first publishes whether
    /// all succeeded.
    #[cfg(target_os = "linux")]
    fn shm(&self, part: u64, ranks: &[usize]) -> Result<Result<Box<dyn Communicator>, String>> {
        use crate::{Store, rendezvous::deadline, transport::shm::ShmSegment};
        use std::time::Instant;

        let deadline = deadline(self.options.join_timeout());
        let key = |what: &str| format!("burn-ddp/shm/{:x}/{part}/{what}", self.group);
        let publish = |what: &str, outcome: Result<&str, &String>| {
            self.control.set(&key(what), &serde_json::to_vec(&outcome).unwrap_or_default())
        };
        let read = |what: &str| -> Result<Result<String, String>> {
            let left = deadline.saturating_duration_since(Instant::now());
            let value = self.control.get(&key(what), left)?;
            Ok(serde_json::from_slice(&value).unwrap_or_else(|error| Err(error.to_string())))
        };
        let rank = ranks.iter().position(|rank| *rank == self.rank).unwrap_or_default();
        let (segment, agreed) = if rank == 0 {
            let segment = ShmSegment::create(ranks.len()).map_err(|error| error.to_string());
            publish("name", segment.as_ref().map(ShmSegment::name))?;
            let mut agreed = segment.as_ref().map(|_| String::new()).map_err(String::clone);
            for other in 1..ranks.len() {
                agreed = agreed.and(read(&other.to_string())?);
            }
            publish("verdict", agreed.as_ref().map(String::as_str))?;
            (segment, agreed)
        } else {
            let open = |name: String| ShmSegment::open(&name, ranks.len()).map_err(|error| error.to_string());
            let segment = read("name")?.and_then(open);
            publish(&rank.to_string(), segment.as_ref().map(|_| ""))?;
            (segment, read("verdict")?)
        };
        match agreed.and(segment) {
            Ok(segment) => Ok(Ok(Box::new(segment.join(rank)?))),
            Err(why) => Ok(Err(why)),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn shm(&self, _part: u64, _ranks: &[usize]) -> Result<Result<Box<dyn Communicator>, String>> {
        Ok(Err("it needs Linux".into()))
    }
}
