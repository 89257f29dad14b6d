//! Where a job's ranks are, and which transport a group of them gets.

use super::inner::Parts;
use crate::{
    Error, Options, Result,
    communicator::{Communicator, Solo},
    rendezvous::{Arbiter, control::Control, hall::Guest, store::HashStore},
    transport::{
        Transport,
        machines::Machines,
        mpi,
        tcp::{Switchboard, Tcp},
    },
};
use std::{sync::Arc, time::Duration};

/// What the groups of one rank share.
#[derive(Debug)]
pub(super) enum Site {
    /// A world of one.
    Solo { options: Options, store: Arc<HashStore> },
    /// Threads of one process.
    Threads { guest: Arc<Guest>, options: Options },
    /// Processes that have met.
    Processes { control: Arc<Control>, switchboard: Arc<Switchboard>, options: Options },
}

/// A group to be, of which this rank is number `rank`.
struct Plan<'a> {
    group: u64,
    /// World ranks.
    members: &'a [usize],
    rank: usize,
    control: &'a Arc<Control>,
    switchboard: &'a Arc<Switchboard>,
    options: &'a Options,
}

impl Site {
    fn options(&self) -> &Options {
        match self {
            Site::Solo { options, .. } | Site::Threads { options, .. } | Site::Processes { options, .. } => {
                options
            }
        }
    }

    /// How long ranks may wait for each other while a group is made.
    pub fn patience(&self) -> Duration {
        self.options().rendezvous_timeout
    }

    /// The group of this rank alone.
    pub fn alone(self: &Arc<Self>) -> Parts {
        self.parts(0, vec![0], 0, Box::new(Solo), None)
    }

    fn parts(
        self: &Arc<Self>,
        group: u64,
        members: Vec<usize>,
        rank: usize,
        comm: Box<dyn Communicator>,
        arbiter: Option<Arc<dyn Arbiter>>,
    ) -> Parts {
        let Options { timeout, flight_folder, .. } = self.options().clone();
        Parts { group, members, rank, comm, arbiter, timeout, flight_folder, site: self.clone() }
    }

    /// A group of `members`, given by world rank, in which this rank is number `rank`.
    pub fn open(self: &Arc<Self>, group: u64, members: Vec<usize>, rank: usize) -> Result<Parts> {
        let alone = members.len() == 1;
        let (comm, arbiter): (Box<dyn Communicator>, Option<Arc<dyn Arbiter>>) = match self.as_ref() {
            Site::Solo { .. } => (Box::new(Solo), None),
            Site::Threads { guest, .. } if alone => (Box::new(Solo), Some(guest.clone())),
            Site::Threads { guest, .. } => {
                (Box::new(guest.communicator(group, rank, members.len())?), Some(guest.clone()))
            }
            Site::Processes { control, .. } if alone => (Box::new(Solo), Some(control.clone())),
            Site::Processes { control, switchboard, options } => {
                let plan = Plan { group, members: &members, rank, control, switchboard, options };
                (plan.open()?, Some(control.clone()))
            }
        };
        Ok(self.parts(group, members, rank, comm, arbiter))
    }
}

impl Plan<'_> {
    fn open(&self) -> Result<Box<dyn Communicator>> {
        let machines = self.machines();
        let one = machines.len() == 1;
        match self.options.transport {
            Transport::Tcp => Ok(Box::new(self.tcp(0, &self.everyone()))),
            Transport::Mpi => mpi::connect(self.group, self.members, self.rank, self.options.rendezvous_timeout),
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

    /// Ranks of the group by machine, in the order of their first.
    fn machines(&self) -> Vec<Vec<usize>> {
        let machine = |rank: usize| &self.control.members()[self.members[rank]].machine;
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
            // A number of its own for every machine's group.
            ranks => self.local(3 + here as u64, ranks)?,
        };
        let leaders = first.contains(&self.rank).then(|| self.tcp(2, &first));
        let flat = self.tcp(0, &self.everyone());
        Ok(Box::new(Machines::new(flat, machines[here].clone(), local, first, leaders)))
    }

    /// Shared memory if all can use it, TCP if not.
    fn local(&self, part: u64, ranks: &[usize]) -> Result<Box<dyn Communicator>> {
        Ok(self.shm(part, ranks)?.unwrap_or_else(|_| Box::new(self.tcp(part, ranks))))
    }

    /// TCP among some ranks of the group. `part` keeps the connections of a group's parts apart.
    fn tcp(&self, part: u64, ranks: &[usize]) -> Tcp {
        let member = |rank: &usize| {
            let member = self.members[*rank];
            (member, self.control.members()[member].data)
        };
        let rank = ranks.iter().position(|rank| *rank == self.rank).unwrap_or_default();
        let members = ranks.iter().map(member).collect();
        Tcp::new(self.switchboard.clone(), self.group.wrapping_add(part << 32), rank, members)
    }

    /// Shared memory among some ranks of the group. Whether it works is decided together: the
    /// first makes it, the others try to open it, the first sums up. The inner error says why not.
    #[cfg(target_os = "linux")]
    fn shm(&self, part: u64, ranks: &[usize]) -> Result<Result<Box<dyn Communicator>, String>> {
        use crate::transport::shm::{ShmCommunicator, ShmSegment};
        use std::time::Instant;

        let timeout = self.options.rendezvous_timeout;
        let deadline = Instant::now() + timeout;
        let key = |what: &str| format!("shm/{:x}/{part}/{what}", self.group);
        // A word is "+" and a name, or "-" and a reason.
        let say = |what: &str, word: &Result<String, String>| {
            let word = word.as_ref().map_or_else(|why| format!("-{why}"), |name| format!("+{name}"));
            self.control.set(&key(what), word.as_bytes());
        };
        let hear = |what: &str| -> Result<Result<String, String>> {
            let word = String::from_utf8_lossy(&self.control.get(&key(what), deadline)?).into_owned();
            Ok(match word.strip_prefix('+') {
                Some(name) => Ok(name.to_string()),
                None => Err(word.trim_start_matches('-').to_string()),
            })
        };
        let rank = ranks.iter().position(|rank| *rank == self.rank).unwrap_or_default();
        let (segment, verdict) = if rank == 0 {
            let segment = ShmSegment::create(ranks.len()).map_err(|error| error.to_string());
            say("name", &segment.as_ref().map(|segment| segment.name().to_string()).map_err(String::clone));
            let mut verdict = segment.as_ref().map(|_| String::new()).map_err(String::clone);
            for other in 1..ranks.len() {
                verdict = verdict.and(hear(&other.to_string())?);
            }
            say("verdict", &verdict);
            (segment, verdict)
        } else {
            let open = |name: String| ShmSegment::open(&name, ranks.len()).map_err(|error| error.to_string());
            let segment = hear("name")?.and_then(open);
            say(&rank.to_string(), &segment.as_ref().map(|_| String::new()).map_err(String::clone));
            (segment, hear("verdict")?)
        };
        match verdict.and(segment) {
            Ok(segment) => {
                let control = self.control.clone();
                let joined = ShmCommunicator::connect_unless(segment, rank, timeout, move || control.cause());
                Ok(Ok(Box::new(joined?)))
            }
            Err(why) => Ok(Err(why)),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn shm(&self, _part: u64, _ranks: &[usize]) -> Result<Result<Box<dyn Communicator>, String>> {
        Ok(Err("it needs Linux".into()))
    }
}
