//! Program start: launches the ranks and gives each one its [`Context`].

pub mod args;
pub mod plan;
pub mod replicas;
pub mod values;
pub mod world_args;

pub use args::ContextArgs;
pub use plan::{Mode, Role};

use crate::{
    device::{LocalDevice, faults, gpus, keep_memory, transport, use_small_pages},
    launch::{WHY, cores, ranks as start_ranks, world::Environment},
    process::{console::Console, exit, stop::StopSignals},
};
use anyhow::{Context as _, Result};
use burn::module::Module;
use burn::tensor::Device;
use collective::{Options, ProcessGroup, ReduceOp, World, module_state};
use kernels::host_tensor::is_flex;
use plan::Plan;
use std::{
    env,
    process::ExitCode,
    sync::atomic::{AtomicU8, Ordering},
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
    signals: StopSignals,
    began: Instant,
    /// Signal that stopped training, or 0.
    stop_signal: AtomicU8,
}

/// Runs `program` on every rank: one process per GPU, or two on the CPU.
///
/// A process started by a launcher (`burn-ddp launch`, torchrun, srun, mpirun, Kubernetes) is one rank and runs
/// `program` itself. Otherwise this starts one copy of the program per rank and terminates all of them if one fails.
/// Returns the exit code for `main`. Errors are printed once.
///
/// ```no_run
/// use collective::ReduceOp;
/// use std::process::ExitCode;
///
/// fn main() -> ExitCode {
///     burn_ddp::launch(|context| {
///         let mut sum = [context.rank() as f32];
///         context.group().all_reduce(&mut sum, ReduceOp::Sum)?;
///         context.print(&format!("sum over {} ranks: {}", context.world_size(), sum[0]));
///         Ok(())
///     })
/// }
/// ```
pub fn launch<F>(program: F) -> ExitCode
where
    F: FnOnce(&Context) -> Result<()>,
{
    launch_with(&ContextArgs::default(), program)
}

/// Runs `program` as [`launch`] does, with devices, processes and transport from flags.
pub fn launch_with<F>(args: &ContextArgs, program: F) -> ExitCode
where
    F: FnOnce(&Context) -> Result<()>,
{
    exit::report(start(args, program))
}

/// Launches the ranks, or runs `program` if this process is a rank.
pub(crate) fn start<F>(args: &ContextArgs, program: F) -> Result<ExitCode>
where
    F: FnOnce(&Context) -> Result<()>,
{
    match Plan::decide(args, args.world.environment()?, gpus(args.device))? {
        Plan::Launch { ranks, why } => start_ranks(ranks, &why),
        Plan::Train(role) => faults::run(&role.device.to_string(), || {
            let context = Context::open(args, role.clone())?;
            program(&context)?;
            context.group.destroy();
            Ok(match context.stop_signal.load(Ordering::Relaxed) {
                0 => ExitCode::SUCCESS,
                signal => ExitCode::from(exit::signal_code(signal)),
            })
        }),
    }
}

impl Context {
    fn open(args: &ContextArgs, role: Role) -> Result<Self> {
        let (began, environment) = (Instant::now(), role.environment);
        let signals = StopSignals::watch()?;
        restore_on_host();
        role.device.check()?;
        let parts = role.replicas.as_ref().map_or(environment.local_world_size, |r| r.devices.len());
        let threads = args.threads.map_or((cores() / parts).max(1), usize::from);
        use_threads(threads)?;
        let console = Console::new(environment.is_main());
        let options = Options::default().timeout(Duration::from_secs_f64(args.timeout));
        let group = args.world.connect(environment, args.transport, options)?;
        let transport =
            transport::attach(args.transport, role.device, &group, false, &|line| console.warn(line))?;
        let device = role.device.burn()?.autodiff();
        let stop_signal = AtomicU8::new(0);
        Ok(Self { role, threads, group, transport, device, console, signals, began, stop_signal })
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
        &self.device
    }

    /// Devices of this process, with autodiff.
    ///
    /// In DP mode there are several; the first one holds the module.
    ///
    /// # Errors
    /// If a device cannot be used.
    pub fn devices(&self) -> Result<Vec<Device>> {
        match &self.role.replicas {
            Some(replicas) => replicas.devices.iter().map(|id| Ok(id.local().burn()?.autodiff())).collect(),
            None => Ok(vec![self.device.clone()]),
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

    /// Handler of stop signals.
    pub(crate) fn signals(&self) -> &StopSignals {
        &self.signals
    }

    /// Sets the exit code of the program to that of a signal.
    pub(crate) fn set_stop_signal(&self, signal: u8) {
        self.stop_signal.store(signal, Ordering::Relaxed);
    }

    /// Initialises a module with the same parameters on every device.
    ///
    /// `init` creates it on the CPU with the random generator seeded by `seed`; it is then moved to this rank's device.
    pub fn init_module<M: Module>(&self, seed: u64, init: impl FnOnce(&Device) -> M) -> M {
        self.device.seed(seed);
        let host = Device::flex().autodiff();
        host.seed(seed);
        let module = init(&host);
        // Burn initialises parameters lazily; after the move, the device's generator would be used.
        module_state::initialize(&module);
        if is_flex(&self.device) { module } else { module.fork(&self.device) }
    }
}

/// Makes Burn load optimizer state into host memory.
///
/// Burn's default is the first GPU on every rank. The first optimizer step moves the state to this rank's device.
fn restore_on_host() {
    if env::var_os("BURN_DEVICE").is_none() {
        // SAFETY: the only other thread waits for signals and does not access the environment.
        unsafe { env::set_var("BURN_DEVICE", "flex") };
    }
}

/// Starts the CPU compute threads: rayon's global pool, which Burn's CPU backend uses.
///
/// With several threads, the calling thread is one of them, so that a parallel operation does not switch threads at
/// its start and end. A single thread is separate, because data loaders need it while the caller waits for them.
///
/// # Errors
/// If the threads cannot be started or the global pool already exists.
pub fn use_threads(threads: usize) -> Result<()> {
    keep_memory();
    use_small_pages();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    let pool = if threads > 1 { pool.use_current_thread() } else { pool };
    pool.build_global().with_context(|| format!("cannot start {threads} compute thread(s)"))
}
