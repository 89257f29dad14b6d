//! Creation of process groups from an init method, a store or threads.

use super::{ProcessGroup, site::Site};
use crate::{
    Error, InitMethod, Options, Result, Secret,
    rendezvous::{
        Plan,
        control::{Control, Joining, connect, other_job},
        hall, host, plan,
        server::Server,
        store::{FileStore, Store},
        wait::RendezvousWait,
        wire::Member,
    },
    transport::{Transport, mpi, tcp::Switchboard},
};
use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Number of the group of all ranks.
pub(super) const WORLD: u64 = 0;

impl ProcessGroup {
    /// A world of one: no socket, no thread, and every collective is the identity.
    pub fn solo() -> Self {
        Self::alone(Options::default())
    }

    fn alone(options: Options) -> Self {
        ProcessGroup::new(Arc::new(Site::Solo { options, store: Arc::default() }).alone())
    }

    /// As many ranks as asked for in this process, to be handed to as many threads. They exchange
    /// data through memory; rank and world size in `options` are not used.
    ///
    /// ```
    /// # use collective::{Options, ProcessGroup, ReduceOp};
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
    /// # Ok::<(), collective::Error>(())
    /// ```
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
            size => hall::open(size, options.stop.clone())?
                .into_iter()
                .enumerate()
                .map(|(rank, guest)| {
                    let site = Arc::new(Site::Threads { guest: Arc::new(guest), options: options.clone() });
                    Ok(ProcessGroup::new(site.open(WORLD, (0..size).collect(), rank)?))
                })
                .collect(),
        }
    }

    /// Meets the other ranks and returns when all have come.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a rank, world size, address or variable that cannot work, also on
    /// the other ranks if they disagree with this one; [`Error::Rendezvous`] with the ranks that
    /// did not come in time; [`Error::Unauthenticated`] if the secrets differ; [`Error::Io`].
    pub fn init(method: InitMethod, options: Options) -> Result<Self> {
        let options = options.or_environment()?;
        let plan = Plan::new(Some(&method), &options)?;
        let exchange = match &method {
            InitMethod::File(path) => {
                let (store, key) = FileStore::of_file(path)?;
                Exchange::Store { store: Arc::new(store), key, name: path.display().to_string() }
            }
            InitMethod::Mpi => Exchange::Mpi,
            InitMethod::Env | InitMethod::Tcp(_) => Exchange::Known,
        };
        Self::meet(plan, &exchange, options)
    }

    /// Joins the other ranks through a key-value store: PyTorch's `init_process_group(store=…)`.
    ///
    /// The store carries rank 0's address and the job's secret. Rank 0 listens on `MASTER_ADDR`, by
    /// default 127.0.0.1. Concurrent jobs that share a store need different
    /// [`group_name`](Options::group_name)s.
    ///
    /// ```
    /// use collective::{HashStore, Options, ProcessGroup, ReduceOp};
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
        let plan = Plan::new(None, &options)?;
        let key = format!("rendezvous/{}", options.group_name.as_deref().unwrap_or("default"));
        let name = format!("{store:?}");
        Self::meet(plan, &Exchange::Store { store, key, name }, options)
    }

    fn meet(plan: Plan, exchange: &Exchange, options: Options) -> Result<Self> {
        if plan.world == 1 {
            return Ok(Self::alone(options));
        }
        let mut wait = RendezvousWait::new(options.rendezvous_timeout, options.report.clone());
        let mut server = None;
        let started = start(&plan, exchange, &options, &mut server, &mut wait);
        if let (Err(_), Some(server)) = (&started, &server) {
            server.close();
        }
        let (control, switchboard) = started?;
        let transport = |rank: usize| &control.members()[rank].transport;
        if let Some(other) = (1..plan.world).find(|other| transport(*other) != transport(0)) {
            return Err(Error::Invalid(format!(
                "rank {other} was started with transport {}, but rank 0 with {}: choose the same for all",
                transport(other),
                transport(0)
            )));
        }
        let (control, switchboard) = (Arc::new(control), Arc::new(switchboard));
        let site = Arc::new(Site::Processes { control, switchboard, options });
        Ok(ProcessGroup::new(site.open(WORLD, (0..plan.world).collect(), plan.rank)?))
    }
}

/// How the other ranks receive rank 0's address and the secret.
enum Exchange {
    /// From their configuration.
    Known,
    /// From a key of a store. `name` is for messages.
    Store { store: Arc<dyn Store>, key: String, name: String },
    /// Through an MPI broadcast.
    Mpi,
}

/// Rank 0 serves; everyone, rank 0 too, joins.
fn start(
    plan: &Plan,
    exchange: &Exchange,
    options: &Options,
    server: &mut Option<Server>,
    wait: &mut RendezvousWait,
) -> Result<(Control, Switchboard)> {
    let (stream, secret) = match (plan.rank, exchange) {
        (0, exchange) => {
            let served = serve(plan, exchange, server);
            match exchange {
                Exchange::Store { store, key, .. } => {
                    let (address, secret) = &served.clone()?;
                    store.set(key, plan::written(&address.to_string(), secret).as_bytes())?;
                }
                Exchange::Mpi => mpi::publish(&served, wait.left())?,
                Exchange::Known => {}
            }
            let (address, secret) = served?;
            // Port 0 and the wildcard address are known better by the listener.
            let mut own = address;
            if own.ip().is_unspecified() {
                own.set_ip(if own.is_ipv4() {
                    Ipv4Addr::LOCALHOST.into()
                } else {
                    Ipv6Addr::LOCALHOST.into()
                });
            }
            let deadline = wait.deadline;
            (connect(&own.to_string(), &secret, wait, deadline)?, secret)
        }
        (_, Exchange::Store { store, key, name }) => connect_by_store(store.as_ref(), key, name, wait)?,
        (_, Exchange::Mpi) => {
            let (address, secret) = mpi::look_up(wait.left())?;
            let deadline = wait.deadline;
            (connect(&address, &secret, wait, deadline)?, secret)
        }
        (_, Exchange::Known) => {
            let (secret, deadline) = (plan.secret()?, wait.deadline);
            (connect(&plan.address, &secret, wait, deadline)?, secret)
        }
    };
    // The address that leads to rank 0 is the one by which the others can reach this rank.
    let local = stream.local_addr().map_err(|e| Error::io("find this rank's address", &e))?;
    let switchboard = Switchboard::start(local.ip(), plan.rank, secret)?;
    let member = Member {
        data: switchboard.address(),
        host: host(),
        machine: options.host_id.clone().unwrap_or_else(machine),
        pid: std::process::id(),
        transport: options.transport.name().to_string(),
    };
    let joining = Joining {
        rank: plan.rank,
        world: plan.world,
        job: plan.job.clone(),
        member,
        stop: options.stop.clone(),
        server: server.as_ref(),
    };
    let control = Control::join(stream, joining, wait)?;
    if let (0, Exchange::Store { store, key, .. }) = (plan.rank, exchange) {
        // All have read it; a later job must not.
        let _ = store.delete(key);
    }
    Ok((control, switchboard))
}

/// Rank 0's store: where it listens, and the job's secret, which is a fresh one if there is a way to
/// tell it to the others.
fn serve(plan: &Plan, exchange: &Exchange, server: &mut Option<Server>) -> Result<(SocketAddr, Secret)> {
    let listener = plan.listen().map_err(|error| {
        // Another job may listen there; its server names it to a process with the same secret.
        let other = plan.secret().ok().and_then(|secret| other_job(&plan.address, &secret, plan.job.clone()));
        other.unwrap_or(error)
    })?;
    let address = listener.local_addr().map_err(|e| Error::io("find the rendezvous address", &e))?;
    let secret = match exchange {
        Exchange::Store { .. } | Exchange::Mpi => plan.secret.clone().unwrap_or_else(Secret::random),
        Exchange::Known => plan.secret()?,
    };
    *server = Some(Server::start(listener, plan.world, secret.clone(), plan.job.clone())?);
    Ok((address, secret))
}

/// Polls the store until its value leads to rank 0. The first value may be an earlier job's.
fn connect_by_store(
    store: &dyn Store,
    key: &str,
    name: &str,
    wait: &mut RendezvousWait,
) -> Result<(TcpStream, Secret)> {
    let mut last = None;
    loop {
        let value = store.try_get(key)?;
        if let Some((address, secret)) = value.and_then(|value| plan::parse(&String::from_utf8(value).ok()?))
        {
            let deadline = wait.deadline.min(Instant::now() + Duration::from_secs(1));
            match connect(&address, &secret, wait, deadline) {
                Ok(stream) => return Ok((stream, secret)),
                Err(error) => last = Some(error),
            }
        }
        let absent = || {
            let why = last.as_ref().map_or_else(|| "no address is there yet".into(), Error::to_string);
            format!("rank 0, which writes its address there ({why})")
        };
        if wait.left().is_zero() {
            return Err(wait.error(name, absent()));
        }
        wait.report(name, absent);
        thread::sleep(Duration::from_millis(20));
    }
}

/// Equal on two ranks if they can share memory: one running kernel, one set of process numbers (a
/// container has its own) and one user.
fn machine() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let processes = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    // SAFETY: it only returns a number.
    let user = unsafe { libc::geteuid() };
    format!("{} {} {} user {user}", host(), boot.trim(), processes.display())
}
