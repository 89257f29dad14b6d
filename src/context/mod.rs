//! [`Context`] of a rank, and the start of a program on all ranks.

pub mod args;
mod in_process;
pub mod plan;
pub(crate) mod recovery;
pub mod replicas;
pub(crate) mod short_help;
mod start;
mod trace;
pub mod values;
pub mod world_args;

pub use args::ContextArgs;
pub use in_process::{launch_threads, launch_threads_with};
pub use plan::{Mode, Role};
pub(crate) use start::start;
pub use start::{launch, launch_with};

use crate::{
    device::{LocalDevice, faults, keep_memory, transport, use_small_pages},
    launch::{Environment, WHY, cores},
    process::{console::Console, lock},
};
use anyhow::{Context as _, Result};
use burn::module::Module;
use burn::tensor::Device;
use collective::{Options, ProcessGroup, ReduceOp, Transport, World, module_state};
use kernels::host_tensor::is_flex;
use recovery::Recovery;
use std::{
    env,
    error::Error,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// One rank of a running program, with its device, process group and console.
pub struct Context {
    role: Role,
    threads: usize,
    group: ProcessGroup,
    transport: String,
    device: Device,
    console: Console,
    began: Instant,
    /// Signal that stopped training, or 0.
    stop_signal: AtomicU8,
    /// Live recovery, if the launcher replaces ranks.
    recovery: Option<Arc<Recovery>>,
    /// Number of trainings that the program has begun.
    trainings: AtomicUsize,
}

impl Context {
    fn open(args: &ContextArgs, role: Role, recovery: Option<Arc<Recovery>>) -> Result<Self> {
        let (began, environment) = (Instant::now(), role.environment);
        role.device.check()?;
        let parts = role.replicas.as_ref().map_or(environment.local_world_size, |r| r.devices.len());
        let wanted = share(args, parts);
        let threads = use_threads(wanted)?;
        if threads > wanted || (args.threads.is_some() && threads < wanted) {
            Console::new(environment.is_main()).warn(&format!(
                "{threads} compute thread(s) were started before launch and stay in use in place of {wanted}; call launch before the first computation"
            ));
        }
        // Replicas have threads of their own.
        let threads = if role.replicas.is_some() { wanted } else { threads };
        let (mut world, mut options) = (args.world.clone(), options(args));
        if let Some(recovery) = &recovery {
            let (method, joined) = recovery.join(options)?;
            (world.init_method, options) = (Some(method), joined);
        }
        let group = world.connect(environment, args.transport, options)?;
        Ok(Self { began, recovery, ..Self::from_group(args, role, threads, group)? })
    }

    /// Creates the context of a rank that has joined its group. It is a collective.
    fn from_group(args: &ContextArgs, role: Role, threads: usize, group: ProcessGroup) -> Result<Self> {
        let console = Console::new(role.environment.is_main());
        // Measures what NCCL costs without other ranks.
        let even_alone = args.transport == Transport::Nccl && role.replicas.is_none();
        let transport =
            transport::attach(args.transport, role.device, &group, even_alone, &|line| console.warn(line))?;
        let device = role.device.burn()?.autodiff();
        let stop_signal = AtomicU8::new(0);
        let began = Instant::now();
        let (recovery, trainings) = (None, AtomicUsize::new(0));
        Ok(Self { role, threads, group, transport, device, console, began, stop_signal, recovery, trainings })
    }

    /// Rank of this process, from 0.
    pub fn rank(&self) -> usize {
        self.group.rank()
    }

    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.group.world_size()
    }

    /// Rank and world size.
    pub fn world(&self) -> World {
        self.group.world()
    }

    /// Whether this is rank 0, which prints and writes files.
    pub fn is_main(&self) -> bool {
        self.role.environment.is_main()
    }

    /// Process group of all ranks.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// Device of this rank, with autodiff.
    pub fn device(&self) -> &Device {
        faults::listen(|line| self.console.warn(line));
        &self.device
    }

    /// Devices of this process, with autodiff.
    ///
    /// In DP mode there are several; the first one holds the module.
    ///
    /// # Errors
    /// If a device cannot be used.
    pub fn devices(&self) -> Result<Vec<Device>> {
        let device = self.device();
        match &self.role.replicas {
            Some(replicas) => replicas.devices.iter().map(|id| Ok(id.burn()?.autodiff())).collect(),
            None => Ok(vec![device.clone()]),
        }
    }

    /// Mode, devices and launcher environment.
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// Identifier of this rank's device.
    pub fn local_device(&self) -> LocalDevice {
        self.role.device
    }

    /// Environment set by the launcher.
    pub fn environment(&self) -> Environment {
        self.role.environment
    }

    /// Number of CPU threads of this rank.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Description of the transport between ranks, such as `shm`.
    pub fn transport(&self) -> &str {
        &self.transport
    }

    /// Console, visible on rank 0 only.
    pub fn console(&self) -> Console {
        self.console
    }

    /// Prints a line on rank 0.
    pub fn print(&self, line: &str) {
        self.console.print(line);
    }

    /// Prints and returns the mean of `value` over all ranks.
    ///
    /// It is a collective: every rank must call it. Only rank 0 prints.
    ///
    /// # Errors
    /// If the all-reduce fails.
    pub fn log(&self, name: &str, value: f64) -> Result<f64> {
        let mut mean = [value];
        self.group.all_reduce(&mut mean, ReduceOp::Mean)?;
        self.print(&format!("{name} {:.6}", mean[0]));
        Ok(mean[0])
    }

    /// Runs `load` on one rank per machine first and then on the other ranks, such as a download of the data set.
    ///
    /// It is a collective: every rank must call it.
    ///
    /// # Errors
    /// If `load` fails on this rank, or the first call on another one.
    pub fn local_main_first<T, E>(&self, load: impl Fn() -> Result<T, E>) -> Result<T>
    where
        E: Into<anyhow::Error>,
    {
        let load = || load().map_err(Into::into);
        let first = self.environment().is_local_main().then(load).transpose()?;
        // The other ranks may wait here for a download.
        self.group.barrier()?;
        first.map_or_else(load, Ok)
    }

    /// Start time of this process.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Reason for the mode and number of ranks, from the launcher if there is one.
    pub(crate) fn why(&self) -> String {
        env::var(WHY).unwrap_or_else(|_| self.role.why.clone())
    }

    /// Live recovery, if the launcher replaces ranks.
    pub(crate) fn recovery(&self) -> Option<&Arc<Recovery>> {
        self.recovery.as_ref()
    }

    /// Number of a new training, which is the same when the program runs again.
    pub(crate) fn next_training(&self) -> usize {
        self.trainings.fetch_add(1, Ordering::Relaxed)
    }

    /// Sets the exit code of the program to that of a signal.
    pub(crate) fn set_stop_signal(&self, signal: u8) {
        self.stop_signal.store(signal, Ordering::Relaxed);
    }

    /// Initialises a module with the same parameters on every device.
    ///
    /// `init` creates it on the CPU with the random generator seeded by `seed`; it is then moved to this rank's device.
    pub fn init_module<M: Module>(&self, seed: u64, init: impl FnOnce(&Device) -> M) -> M {
        // The ranks of `launch_threads` share the random generator of the CPU.
        static GENERATOR: Mutex<()> = Mutex::new(());
        let _initializing = lock(&GENERATOR);
        self.device().seed(seed);
        let host = Device::flex().autodiff();
        host.seed(seed);
        let module = init(&host);
        // Burn initialises parameters lazily; after the move, the device's generator would be used.
        module_state::initialize(&module);
        if is_flex(&self.device) { module } else { module.fork(&self.device) }
    }
}

/// Options of the process group.
fn options(args: &ContextArgs) -> Options {
    Options::default().timeout(Duration::from_secs_f64(args.timeout))
}

/// Compute threads of each of `parts` ranks or replicas.
fn share(args: &ContextArgs, parts: usize) -> usize {
    args.threads.map_or((cores() / parts).max(1), usize::from)
}

/// Starts the CPU compute threads: rayon's global pool, which Burn's CPU backend uses. Returns their number.
///
/// With several threads, the calling thread is one of them, so that a parallel operation does not switch threads at
/// its start and end. A single thread is separate, because data loaders need it while the caller waits for them.
/// Threads that the program has started already, by its first parallel operation, stay in use.
///
/// # Errors
/// If the threads cannot be started.
pub fn use_threads(threads: usize) -> Result<usize> {
    keep_memory();
    use_small_pages();
    if rayon::current_thread_index().is_none() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let pool = if threads > 1 { pool.use_current_thread() } else { pool };
        // An error without a source states that the pool exists.
        if let Err(error) = pool.build_global()
            && error.source().is_some()
        {
            return Err(error).with_context(|| format!("cannot start {threads} compute thread(s)"));
        }
    }
    Ok(rayon::current_num_threads())
}
