//! Creation of process groups from an init method, a store, threads or another group.

use super::{
    ProcessGroup,
    address_exchange::start,
    config::{Exchange, RendezvousConfig},
    group_state::{Family, GroupState},
    topology::{Ranks, Topology},
};
use crate::{
    Error, InitMethod, Options, Result,
    communicator::Solo,
    rendezvous::{
        control::Control,
        store::{FileStore, Store},
        wait::RendezvousWait,
    },
    transport::{Transport, thread::ThreadGroups},
};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Id of the group of all ranks.
pub(super) const WORLD: u64 = 0;

impl ProcessGroup {
    /// A group of one rank, without sockets or threads; every collective is the identity.
    pub fn solo() -> Self {
        Self::alone(Options::default())
    }

    fn alone(options: Options) -> Self {
        let state = GroupState::new(WORLD, vec![0], 0, Box::new(Solo), &options, None);
        ProcessGroup::new(Arc::new(Topology { ranks: Ranks::Solo(Arc::default()), options }), state)
    }

    /// Creates `world_size` ranks in this process, one for each of as many threads.
    ///
    /// They exchange data through memory. Rank and world size in `options` are ignored.
    ///
    /// ```
    /// # use burn_ddp_comm::{Options, ProcessGroup, ReduceOp};
    /// let groups = ProcessGroup::threads(2, Options::default())?;
    /// std::thread::scope(|scope| {
    ///     for group in groups {
    ///         scope.spawn(move || {
    ///             let mut sum = [group.rank() as f32 + 1.0];
    ///             group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    ///             assert_eq!(sum, [3.0]);
    ///         });
    ///     }
    /// });
    /// # Ok::<(), burn_ddp_comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a world size of 0 or a transport between processes.
    pub fn threads(world_size: usize, options: Options) -> Result<Vec<Self>> {
        let options = options.or_environment()?;
        match options.transport {
            Transport::Auto | Transport::Thread | Transport::Nccl => {}
            other @ (Transport::Shm | Transport::Tcp | Transport::Mpi) => {
                return Err(Error::Invalid(format!(
                    "threads of one process do not use transport {other}; choose auto or thread"
                )));
            }
        }
        match world_size {
            0 => Err(Error::Invalid("the world size is 0; it must be at least 1".into())),
            1 => Ok(vec![Self::alone(options)]),
            size => {
                let groups = Arc::<ThreadGroups>::default();
                let open = |(rank, control)| {
                    let ranks = Ranks::Threads(Arc::new(control), groups.clone());
                    let topology = Topology { ranks, options: options.clone() };
                    Self::open(Arc::new(topology), WORLD, (0..size).collect(), rank, None)
                };
                Control::in_process(size)?.into_iter().enumerate().map(open).collect()
            }
        }
    }

    /// Joins the other ranks and returns when all have joined.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a rank, world size, address or variable that is not valid, also on the other
    /// ranks if they disagree with this one; [`Error::Rendezvous`] with the ranks that did not join in time;
    /// [`Error::Unauthenticated`] if the secrets differ; [`Error::Io`].
    pub fn init(method: InitMethod, options: Options) -> Result<Self> {
        let name = method.to_string();
        let exchange = match method {
            InitMethod::Env => Exchange::Known(None),
            InitMethod::Tcp(address) => Exchange::Known(Some(address)),
            InitMethod::File(path) => {
                let (store, key) = FileStore::of_file(&path)?;
                Exchange::Store { store: Arc::new(store), key, name: path.display().to_string() }
            }
            InitMethod::Mpi => Exchange::Mpi,
        };
        Self::meet(RendezvousConfig::new(&name, exchange, options.or_environment()?)?)
    }

    /// Joins the other ranks through a key-value store: PyTorch's `init_process_group(store=…)`.
    ///
    /// The store carries rank 0's address and the job's secret. Rank 0 listens on `MASTER_ADDR`, by
    /// default 127.0.0.1. Concurrent jobs that share a store need different
    /// [`group_name`](Options::group_name)s.
    ///
    /// ```
    /// use burn_ddp_comm::{HashStore, Options, ProcessGroup, ReduceOp};
    /// use std::{sync::Arc, thread};
    /// let store = Arc::new(HashStore::default());
    /// thread::scope(|scope| {
    ///     for rank in 0..2 {
    ///         let (store, options) = (store.clone(), Options::default().rank(rank).world_size(2));
    ///         scope.spawn(move || {
    ///             let group = ProcessGroup::init_with_store(store, options).unwrap();
    ///             let mut sum = [1f32];
    ///             group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    ///             assert_eq!(sum, [2.0]);
    ///         });
    ///     }
    /// });
    /// ```
    ///
    /// # Errors
    /// Those of [`ProcessGroup::init`] and of the store.
    pub fn init_with_store(store: Arc<dyn Store>, options: Options) -> Result<Self> {
        let options = options.or_environment()?;
        let key = format!("rendezvous/{}", options.group_name.as_deref().unwrap_or("default"));
        let name = format!("{store:?}");
        let exchange = Exchange::Store { store, key, name };
        Self::meet(RendezvousConfig::new("init_with_store", exchange, options)?)
    }

    /// Splits the group: ranks that pass the same `color` form a new group.
    ///
    /// In the new group they are ordered by `key`, then by their rank in this one. Every rank of this group
    /// must call it. The new group can be split again, and lives as long as its handles. A failure in one
    /// group fails all groups of the job.
    ///
    /// # Errors
    /// Those of [`ProcessGroup::all_reduce`], and of creating the new group's transport.
    pub fn split(&self, color: u64, key: i64) -> Result<ProcessGroup> {
        self.derive(color, key, None)
    }

    /// Creates a group of the same ranks, whose calls do not queue behind those of this one.
    ///
    /// `purpose` describes it in messages, such as `gradients`. The duplicate is for the thread that uses this
    /// group, and for background calls: if two ranks wait for each other in a group and its duplicate, all calls
    /// fail as a mismatch. Once two threads of a rank have used the family, such waits end with their time-out.
    /// A group for another thread is made by [`split`](ProcessGroup::split).
    ///
    /// # Errors
    /// Those of [`ProcessGroup::split`].
    pub fn duplicate(&self, purpose: &str) -> Result<ProcessGroup> {
        self.derive(0, 0, Some(purpose))
    }

    fn derive(&self, color: u64, key: i64, purpose: Option<&str>) -> Result<ProcessGroup> {
        self.with_permit(|group| {
            let shared = &group.shared;
            let mine = [color as i64, key];
            let all = group.all_gather(&mine)?;
            let mut ranks: Vec<_> = all
                .iter()
                .enumerate()
                .filter(|(_, choice)| choice[0] == color as i64)
                .map(|(rank, choice)| (choice[1], rank))
                .collect();
            ranks.sort();
            let members: Vec<usize> = ranks.iter().map(|(_, rank)| shared.state.members[*rank]).collect();
            // Equal on all ranks of the new group, and different from the ids of all other groups.
            let name = format!("{} {} {color}", shared.state.group, shared.state.last_seq());
            let digest = Sha256::digest(name);
            let id = digest.iter().take(8).fold(0u64, |id, byte| id << 8 | u64::from(*byte)).max(1);
            let me = shared.state.members[shared.state.world.rank];
            let rank = members.iter().position(|member| *member == me).unwrap_or_default();
            let duplicate =
                purpose.map(|purpose| (format!("the group of {purpose}"), shared.state.family.clone()));
            let part = Self::open(shared.topology.clone(), id, members, rank, duplicate)?;
            part.attach_like(group)?;
            Ok(part)
        })
    }

    fn meet(config: RendezvousConfig) -> Result<Self> {
        let RendezvousConfig { rank, world, options, .. } = &config;
        if *world == 1 {
            return Ok(Self::alone(config.options));
        }
        let mut wait =
            RendezvousWait::new(options.join_timeout(), options.report.clone(), options.cancel.clone());
        let mut server = None;
        let started = start(&config, &mut server, &mut wait);
        if let (Err(error), Some(server)) = (&started, &server) {
            server.close(error.clone());
        }
        let (control, pool) = started?;
        let ranks = Ranks::Processes(Arc::new(control), Arc::new(pool));
        let (rank, members) = (*rank, (0..*world).collect());
        Self::open(Arc::new(Topology { ranks, options: config.options }), WORLD, members, rank, None)
    }

    fn open(
        topology: Arc<Topology>,
        group: u64,
        members: Vec<usize>,
        rank: usize,
        duplicate: Option<(String, Arc<Family>)>,
    ) -> Result<Self> {
        let comm = topology.connect(group, &members, rank)?;
        let state = GroupState::new(group, members, rank, comm, &topology.options, duplicate);
        Ok(ProcessGroup::new(topology, state))
    }
}
