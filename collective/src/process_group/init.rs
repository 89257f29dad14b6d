//! From an init method to a process group.

use super::{Inner, ProcessGroup};
use crate::{
    Error, InitMethod, Options, Result, Secret, World,
    communicator::Solo,
    rendezvous::{
        Plan,
        control::{Control, connect},
        plan,
        server::Server,
        wire::Member,
    },
    transport::{
        Transport,
        tcp::{Switchboard, Tcp},
    },
};
use std::{
    net::TcpStream,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Number of the group of all ranks.
pub(super) const WORLD: u64 = 0;

impl ProcessGroup {
    /// A world of one: no socket, no thread, and every collective is the identity.
    pub fn solo() -> Self {
        ProcessGroup::new(Inner::new(
            WORLD,
            vec![0],
            World { rank: 0, size: 1 },
            Box::new(Solo),
            None,
            Options::default().timeout,
        ))
    }

    /// Meets the other ranks and returns when all have come.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a rank, world size, address or variable that cannot work, also on
    /// the other ranks if they disagree with this one; [`Error::Rendezvous`] with the ranks that
    /// did not come in time; [`Error::Unauthenticated`] if the secrets differ; [`Error::Io`].
    pub fn init(method: InitMethod, options: Options) -> Result<Self> {
        let plan = Plan::new(&method, &options)?;
        if plan.world == 1 {
            return Ok(Self::solo());
        }
        let transport = match options.transport {
            Transport::Auto | Transport::Tcp => Transport::Tcp,
            other => {
                return Err(Error::Invalid(format!(
                    "transport {other} is not in this build; choose auto or tcp"
                )));
            }
        };
        let begun = Instant::now();
        let deadline = begun + options.rendezvous_timeout;
        let file = match &method {
            InitMethod::File(path) => Some(path.as_path()),
            InitMethod::Env | InitMethod::Tcp(_) => None,
        };
        let mut server = None;
        let started = start(&plan, file, &mut server, begun, deadline);
        if let (Err(_), Some(server)) = (&started, &server) {
            server.close();
        }
        let (control, switchboard) = started?;
        let members = control.members().iter().map(|member| member.data).enumerate().collect();
        let world = World { rank: plan.rank, size: plan.world };
        let comm = match transport {
            Transport::Auto | Transport::Thread | Transport::Shm | Transport::Tcp => {
                Tcp::new(Arc::new(switchboard), WORLD, plan.rank, members)
            }
        };
        let ranks = (0..plan.world).collect();
        Ok(ProcessGroup::new(Inner::new(
            WORLD,
            ranks,
            world,
            Box::new(comm),
            Some(Arc::new(control)),
            options.timeout,
        )))
    }
}

/// Rank 0 serves; everyone, rank 0 too, joins.
fn start(
    plan: &Plan,
    file: Option<&Path>,
    server: &mut Option<Server>,
    begun: Instant,
    deadline: Instant,
) -> Result<(Control, Switchboard)> {
    let (stream, secret) = match (plan.rank, file) {
        (0, file) => {
            let listener = plan.listen()?;
            let address = listener.local_addr().map_err(|e| Error::io("find the rendezvous address", &e))?;
            let secret = match file {
                Some(_) => plan.secret.clone().unwrap_or_else(Secret::random),
                None => plan.secret()?,
            };
            *server = Some(Server::start(listener, plan.world, secret.clone())?);
            if let Some(path) = file {
                plan::publish(path, address, &secret)?;
            }
            // Port 0 and the wildcard address are known better by the listener.
            let mut own = address;
            if own.ip().is_unspecified() {
                own.set_ip(if own.is_ipv4() {
                    std::net::Ipv4Addr::LOCALHOST.into()
                } else {
                    std::net::Ipv6Addr::LOCALHOST.into()
                });
            }
            (connect(&own.to_string(), &secret, begun, deadline)?, secret)
        }
        (_, Some(path)) => connect_by_file(path, begun, deadline)?,
        (_, None) => {
            let secret = plan.secret()?;
            (connect(&plan.address, &secret, begun, deadline)?, secret)
        }
    };
    // The address that leads to rank 0 is the one by which the others can reach this rank.
    let local = stream.local_addr().map_err(|e| Error::io("find this rank's address", &e))?;
    let switchboard = Switchboard::start(local.ip(), plan.rank, secret)?;
    let member =
        Member { data: switchboard.address(), host: host(), machine: machine(), pid: std::process::id() };
    let control = Control::join(stream, plan.rank, plan.world, member, begun, deadline)?;
    if let (0, Some(path)) = (plan.rank, file) {
        // All have read it; a later job must not.
        let _ = std::fs::remove_file(path);
    }
    Ok((control, switchboard))
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

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "an unnamed host".into() } else { name.trim().into() }
}

/// Equal on two ranks if they share a running kernel and a host name (a container has its own).
fn machine() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("{} {}", host(), boot.trim())
}
