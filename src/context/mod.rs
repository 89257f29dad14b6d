//! Start of a program: its ranks, and what each of them knows of its place in the job.

pub mod args;
pub mod plan;
pub mod replicas;
pub mod values;
pub mod world_args;

pub use args::ContextArgs;
pub use plan::{Mode, Role};

use crate::{
    device::{LocalDevice, faults, gpus, keep_memory, transport},
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

/// One rank of a running program: its device, its process group and the console.
pub struct Context {
    role: Role,
    threads: usize,
    group: ProcessGroup,
    transport: String,
    device: Device,
    console: Console,
    signals: StopSignals,
    began: Instant,
    /// The signal that ended training, or 0.
    stopped_by: AtomicU8,
}

/// Runs `program` on every rank, on the devices of this machine: a process for each GPU, or two on the CPU.
///
/// A process that a launcher started (`burn-ddp launch`, torchrun, srun, mpirun, Kubernetes) is one rank and runs
/// `program` itself. Otherwise this starts copies of the program, waits for them, and ends all of them if one fails.
/// Returns the exit code for `main`; errors are printed once.
///
/// ```no_run
/// use collective::ReduceOp;
/// use std::process::ExitCode;
///
/// fn main() -> ExitCode {
///     burn_ddp::launch(|context| {
///         let mut sum = [context.rank() as f32];
///         context.group().all_reduce(&mut sum, ReduceOp::Sum)?;
///         context.say(&format!("sum over {} ranks: {}", context.world_size(), sum[0]));
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

/// [`launch`] with devices, processes and transport chosen by flags.
pub fn launch_with<F>(args: &ContextArgs, program: F) -> ExitCode
where
    F: FnOnce(&Context) -> Result<()>,
{
    exit::report(start(args, program))
}

/// Starts the ranks, or runs `program` as one of them.
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
            Ok(match context.stopped_by.load(Ordering::Relaxed) {
                0 => ExitCode::SUCCESS,
                signal => ExitCode::from(exit::stopped_by(signal)),
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
        let stopped_by = AtomicU8::new(0);
        Ok(Self { role, threads, group, transport, device, console, signals, began, stopped_by })
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.group.rank()
    }

    /// The number of ranks.
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

    /// The process group of all ranks.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// This rank's device, with autodiff.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The devices of this process, with autodiff: several in DP mode, the first of which holds the module.
    ///
    /// # Errors
    /// If a device cannot be used.
    pub fn devices(&self) -> Result<Vec<Device>> {
        match &self.role.replicas {
            Some(replicas) => replicas.devices.iter().map(|id| Ok(id.local().burn()?.autodiff())).collect(),
            None => Ok(vec![self.device.clone()]),
        }
    }

    /// Mode, devices and the launcher's variables.
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// The name of this rank's device.
    pub fn local_device(&self) -> LocalDevice {
        self.role.device
    }

    /// The launcher's variables.
    pub fn environment(&self) -> Environment {
        self.role.environment
    }

    /// CPU threads of this rank.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// What moves data between ranks, such as `shm`.
    pub fn transport(&self) -> &str {
        &self.transport
    }

    /// The console, which is visible on rank 0 only.
    pub fn console(&self) -> Console {
        self.console
    }

    /// Prints a line on rank 0.
    pub fn say(&self, line: &str) {
        self.console.say(line);
    }

    /// Prints the mean of `value` over the ranks, on rank 0, and returns it. Every rank must call it.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn log(&self, name: &str, value: f64) -> Result<f64> {
        let mut mean = [value];
        self.group.all_reduce(&mut mean, ReduceOp::Mean)?;
        self.say(&format!("{name} {:.6}", mean[0]));
        Ok(mean[0])
    }

    /// When this process began.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Why there are so many ranks, as their launcher explained it.
    pub(crate) fn why(&self) -> String {
        env::var(WHY).unwrap_or_else(|_| self.role.why.clone())
    }

    /// The signals that stop a run.
    pub(crate) fn signals(&self) -> &StopSignals {
        &self.signals
    }

    /// Makes the program end with the exit code of a signal.
    pub(crate) fn stopped_by(&self, signal: u8) {
        self.stopped_by.store(signal, Ordering::Relaxed);
    }

    /// A module with the same initial parameters whatever the device: `init` makes it on the CPU, whose
    /// generator is seeded with `seed`, and it is then moved to this rank's device.
    pub fn init_module<M: Module>(&self, seed: u64, init: impl FnOnce(&Device) -> M) -> M {
        self.device.seed(seed);
        let host = Device::flex().autodiff();
        host.seed(seed);
        let module = init(&host);
        // Before it is moved to the device, whose generator would draw them otherwise.
        module_state::initialize(&module);
        if is_flex(&self.device) { module } else { module.fork(&self.device) }
    }
}

/// Makes Burn build an optimizer's loaded state in host memory, from where the first step takes it to this rank's
/// device. Burn's default is the first GPU, for every rank.
fn restore_on_host() {
    if env::var_os("BURN_DEVICE").is_none() {
        // SAFETY: no other thread has been started but the one that waits for signals.
        unsafe { env::set_var("BURN_DEVICE", "flex") };
    }
}

/// Starts the threads that compute on the CPU: Burn's CPU backend uses rayon's global pool.
///
/// # Errors
/// If they cannot be started, or a pool exists.
pub fn use_threads(threads: usize) -> Result<()> {
    keep_memory();
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global()
        .with_context(|| format!("cannot start {threads} compute thread(s)"))
}
