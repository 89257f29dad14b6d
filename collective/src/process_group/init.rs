//! From an init method to a process group.

use super::{ProcessGroup, site::Site};
use crate::{
    Error, InitMethod, Options, Result, Secret,
    rendezvous::{
        Plan,
        control::{Control, connect},
        hall, host, plan,
        server::Server,
        wire::Member,
    },
    transport::{Transport, mpi, tcp::Switchboard},
};
use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Number of the group of all ranks.
const WORLD: u64 = 0;

impl ProcessGroup {
    /// A world of one: no socket, no thread, and every collective is the identity.
    pub fn solo() -> Self {
        Self::alone(Options::default())
    }

    fn alone(options: Options) -> Self {
        ProcessGroup::new(Arc::new(Site::Solo(options)).alone())
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
        let options = options.or_environment();
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
            size => hall::open(size)?
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
        let options = options.or_environment();
        let plan = Plan::new(&method, &options)?;
        if plan.world == 1 {
            return Ok(Self::alone(options));
        }
        let begun = Instant::now();
        let deadline = begun + options.rendezvous_timeout;
        let mut server = None;
        let machine = options.host_id.clone().unwrap_or_else(machine);
        let about = (machine, options.transport.name().to_string());
        let started = start(&plan, &method, about, &mut server, begun, deadline);
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

/// Rank 0 serves; everyone, rank 0 too, joins.
fn start(
    plan: &Plan,
    method: &InitMethod,
    (machine, transport): (String, String),
    server: &mut Option<Server>,
    begun: Instant,
    deadline: Instant,
) -> Result<(Control, Switchboard)> {
    let (stream, secret) = match (plan.rank, method) {
        (0, method) => {
            let served = serve(plan, method, server);
            match method {
                InitMethod::File(path) => {
                    let (address, secret) = &served.clone()?;
                    plan::publish(path, *address, secret)?;
                }
                InitMethod::Mpi => mpi::publish(&served, deadline.saturating_duration_since(begun))?,
                InitMethod::Env | InitMethod::Tcp(_) => {}
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
            (connect(&own.to_string(), &secret, begun, deadline)?, secret)
        }
        (_, InitMethod::File(path)) => connect_by_file(path, begun, deadline)?,
        (_, InitMethod::Mpi) => {
            let (address, secret) = mpi::look_up(deadline.saturating_duration_since(begun))?;
            (connect(&address, &secret, begun, deadline)?, secret)
        }
        (_, InitMethod::Env | InitMethod::Tcp(_)) => {
            let secret = plan.secret()?;
            (connect(&plan.address, &secret, begun, deadline)?, secret)
        }
    };
    // The address that leads to rank 0 is the one by which the others can reach this rank.
    let local = stream.local_addr().map_err(|e| Error::io("find this rank's address", &e))?;
    let switchboard = Switchboard::start(local.ip(), plan.rank, secret)?;
    let member =
        Member { data: switchboard.address(), host: host(), machine, pid: std::process::id(), transport };
    let control = Control::join(stream, plan.rank, plan.world, member, begun, deadline)?;
    if let (0, InitMethod::File(path)) = (plan.rank, method) {
        // All have read it; a later job must not.
        let _ = std::fs::remove_file(path);
    }
    Ok((control, switchboard))
}

/// Rank 0's store: where it listens, and the job's secret, which is a fresh one if there is a way to
/// tell it to the others.
fn serve(plan: &Plan, method: &InitMethod, server: &mut Option<Server>) -> Result<(SocketAddr, Secret)> {
    let listener = plan.listen()?;
    let address = listener.local_addr().map_err(|e| Error::io("find the rendezvous address", &e))?;
    let secret = match method {
        InitMethod::File(_) | InitMethod::Mpi => plan.secret.clone().unwrap_or_else(Secret::random),
        InitMethod::Env | InitMethod::Tcp(_) => plan.secret()?,
    };
    *server = Some(Server::start(listener, plan.world, secret.clone())?);
    Ok((address, secret))
}

/// Reads the file until what it says leads to rank 0: it may still be an earlier job's.
fn connect_by_file(path: &Path, begun: Instant, deadline: Instant) -> Result<(TcpStream, Secret)> {
    let mut last = None;
    while Instant::now() < deadline {
        if let Some((address, secret)) = plan::read(path) {
            let patience = deadline.min(Instant::now() + Duration::from_secs(1));
            match connect(&address, &secret, begun, patience) {
                Ok(stream) => return Ok((stream, secret)),
                Err(error) => last = Some(error),
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
    Err(plan::no_file(path, begun, last))
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
