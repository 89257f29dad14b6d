//! Runs the program with the stand-ins in place of NVIDIA's libraries.

use crate::common::{self, Outcome, Run, finish, mnist, program};
use std::{
    collections::HashMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    thread,
};

/// A short run on images of MNIST.
pub const SMALL: &str =
    "--dataset subset --train-limit 96 --eval-limit 16 --max-steps 5 --dropout 0 --no-shuffle
    --scale-lr none --lr 0.01 --progress plain";

/// [`SMALL`] with the smaller network, whose steps take a tenth of the time.
pub const TINY: &str =
    "--dataset subset --train-limit 96 --eval-limit 16 --max-steps 5 --dropout 0 --no-shuffle
    --scale-lr none --lr 0.01 --progress plain --network lenet";

/// Headers that the program requires; the NVRTC stand-in reads none.
const HEADERS: [&str; 5] = ["cuda_runtime.h", "mma.h", "crt/mma.h", "nv/target", "cuda/barrier"];

/// The folder of the stand-ins and of the kernels that g++ has compiled for them.
///
/// The stand-ins are built once per test program; the kernels are kept between runs.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda");
        for part in
            ["lib", "kernels", "cache", "toolkit/include/crt", "toolkit/include/nv", "toolkit/include/cuda"]
        {
            fs::create_dir_all(folder.join(part)).expect("a folder");
        }
        thread::scope(|scope| {
            for (from, to) in [
                ("tests/cuda_stand_in/driver.rs", "libcuda.so.1"),
                ("tests/cuda_stand_in/nvrtc.rs", "libnvrtc.so"),
                ("collective/comm/tests/nccl_stand_in/nccl.rs", "libnccl.so.2"),
            ] {
                let library = folder.join("lib").join(to);
                scope.spawn(move || build(from, &library));
            }
        });
        for header in HEADERS {
            fs::write(folder.join("toolkit/include").join(header), "").expect("a header");
        }
        folder
    })
}

/// Builds a stand-in whose `SONAME` is its file name, as for NVIDIA's libraries.
pub fn build(source: &str, library: &Path) {
    build_with(source, library, &[]);
}

/// [`build`] with more flags of rustc.
pub fn build_with(source: &str, library: &Path, flags: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let name = library.file_name().and_then(|name| name.to_str()).expect("UTF-8");
    let new = library.with_extension("new");
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--edition", "2024", "--crate-type", "cdylib", "-C", "opt-level=2", "-o"])
        .args([&new, &source])
        .args(flags)
        .args(["-C", &format!("link-arg=-Wl,-soname,{name}")])
        .output()
        .expect("rustc");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Another test program may have loaded the previous file.
    fs::rename(&new, library).expect("a library");
}

/// A machine with emulated GPUs.
#[derive(Clone)]
pub struct Machine {
    variables: Vec<(String, String)>,
}

impl Machine {
    /// A machine with `devices` GPUs. If `kernel_cache` is set, CubeCL begins with an empty cache there.
    pub fn new(devices: usize) -> Self {
        let folder = folder();
        let path = |part: &str| folder.join(part).to_str().expect("UTF-8").to_owned();
        let variables = [
            ("LD_LIBRARY_PATH", path("lib")),
            ("CUDA_PATH", path("toolkit")),
            ("BURN_DDP_NCCL_PATH", path("lib/libnccl.so.2")),
            ("BURN_DDP_KERNEL_CACHE", path("cache")),
            ("CUBECL_AUTOTUNE_LEVEL", "minimal".into()),
            ("RUST_BACKTRACE", "0".into()),
            ("CUDA_STAND_IN_CACHE", path("kernels")),
            ("CUDA_STAND_IN_DEVICES", devices.to_string()),
        ];
        Machine { variables: variables.map(|(name, value)| (name.into(), value)).to_vec() }
    }

    /// Sets an environment variable.
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.variables.retain(|(existing, _)| existing != name);
        self.variables.push((name.into(), value.to_string()));
        self
    }

    /// The environment variables.
    pub fn variables(&self) -> &[(String, String)] {
        &self.variables
    }

    /// Value of an environment variable.
    pub fn value(&self, name: &str) -> &str {
        let found = self.variables.iter().find(|(existing, _)| existing == name);
        found.map(|(_, value)| value.as_str()).expect("a variable")
    }

    /// Runs `mnist_ddp` with these flags, separated by spaces.
    pub fn train(&self, flags: &str) -> Outcome {
        self.start(&mnist(), flags)
    }

    /// Runs an example with these flags, separated by spaces.
    pub fn example(&self, name: &str, flags: &str) -> Outcome {
        self.start(&common::example(name), flags)
    }

    /// Runs `burn-ddp` with these arguments, separated by spaces.
    pub fn run(&self, arguments: &str) -> Outcome {
        self.start(&program(), arguments)
    }

    /// Runs a program with these arguments, separated by spaces.
    pub fn start(&self, program: &Path, arguments: &str) -> Outcome {
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        let mut command = common::command(program, &arguments);
        command.env_remove("CUDA_VISIBLE_DEVICES").envs(self.variables.iter().cloned());
        finish(command.spawn().expect("the program was built"))
    }

    /// Trains on an emulated GPU into a temporary folder; panics if that fails.
    pub fn trained(&self, flags: &str) -> Run {
        let run = Run::new();
        let flags = format!("--device cuda --run-dir {} {flags}", run.path.display());
        clean(&self.train(&flags).succeeded());
        run
    }

    /// Losses on an emulated GPU with these flags.
    pub fn losses(&self, flags: &str) -> Vec<f64> {
        once(format!("{:?} {flags}", self.variables), || self.trained(flags))
    }
}

type Losses = Arc<OnceLock<Vec<f64>>>;

/// The losses of a run that several tests compare with. The first test makes it.
fn once(key: String, make: impl FnOnce() -> Run) -> Vec<f64> {
    static RUNS: Mutex<Option<HashMap<String, Losses>>> = Mutex::new(None);
    let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    let run = runs.get_or_insert_default().entry(key).or_default().clone();
    drop(runs);
    run.get_or_init(|| make().losses()).clone()
}

/// Losses on the CPU with these flags.
pub fn cpu_losses(flags: &str) -> Vec<f64> {
    once(format!("cpu {flags}"), || common::trained(flags))
}

/// Panics if a thread panicked or the stand-in reported an error, such as a copy out of bounds.
pub fn clean(outcome: &Outcome) {
    for sign in ["panicked", "CUDA stand-in"] {
        assert!(!outcome.stderr.contains(sign) && !outcome.stdout.contains(sign), "{sign}: {outcome:#?}");
    }
}
