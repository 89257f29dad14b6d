//! Kernels: shared objects compiled from the NVRTC stand-in's CUDA C++, and their launches.
//!
//! The stand-in's "PTX" is the name of a source file. It is compiled when one of its kernels is first executed, and
//! cached under a hash of its contents, which include the compiler's flags.

use crate::{
    ILLEGAL_ADDRESS, INVALID_IMAGE, Status, compiler, device, fault, fiber, memory,
    settings::{collects_sources, lock, spent},
};
use std::{
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    fs::{self, File},
    path::{Path, PathBuf},
    process::{self, Command},
    sync::{Mutex, OnceLock, atomic::AtomicUsize},
    thread,
    time::{Duration, Instant},
};

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}
const NOW: c_int = 2;

/// Duration of a measurement, long enough that CubeCL does not repeat it with more work.
const MEASUREMENT: Duration = Duration::from_millis(25);
/// Duration of one of the many empty launches whose cost CubeCL measures, by the times that `TIMES` sets.
const EMPTY_LAUNCH: Duration = Duration::from_millis(1);

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Dim {
    pub x: u32,
    pub y: u32,
    pub z: u32,
}

impl From<[u32; 3]> for Dim {
    fn from([x, y, z]: [u32; 3]) -> Self {
        Dim { x, y, z }
    }
}

/// Symbols that `cuda_on_cpu.h` exports.
pub struct Entry {
    /// Runs one thread.
    pub thread: unsafe extern "C" fn(*const *const c_void),
    /// Runs all threads of a block, for a kernel without barriers and warp operations.
    pub block: unsafe extern "C" fn(*const *const c_void),
    /// Whether the kernel has barriers or warp operations.
    pub meets: bool,
    /// Size of each parameter in bytes.
    sizes: Vec<usize>,
    /// Number of threads of a block, from `__launch_bounds__`.
    most_threads: u32,
    /// The block's shared memory; null if the kernel has none.
    shared: *mut u8,
    pub thread_index: *mut Dim,
    block_index: *mut Dim,
    block_size: *mut Dim,
    grid_size: *mut Dim,
}
// SAFETY: only the executing thread uses it.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

pub struct Module {
    source: PathBuf,
    context: usize,
    functions: Mutex<Vec<&'static Function>>,
}

pub struct Function {
    name: String,
    source: PathBuf,
    pub context: usize,
    /// Bytes of shared memory that a launch may use.
    pub shared: AtomicUsize,
    entry: OnceLock<Entry>,
}

/// A kernel with its arguments.
pub struct Launch {
    function: &'static Function,
    grid: [u32; 3],
    block: [u32; 3],
    /// Bytes of shared memory of a block.
    shared: usize,
    /// The arguments, each aligned to 16 bytes.
    arguments: Vec<u128>,
}

impl Module {
    pub fn new(image: &CStr, context: usize) -> Option<Self> {
        let source = PathBuf::from(image.to_str().ok()?);
        let known = collects_sources() || source.is_file();
        known.then(|| Module { source, context, functions: Mutex::default() })
    }

    pub fn function(&self, name: &str) -> *const Function {
        let mut functions = lock(&self.functions);
        if let Some(found) = functions.iter().find(|function| function.name == name) {
            return *found;
        }
        let function = Function {
            name: name.into(),
            source: self.source.clone(),
            context: self.context,
            shared: AtomicUsize::new(device::SHARED),
            entry: OnceLock::new(),
        };
        functions.push(Box::leak(Box::new(function)));
        functions[functions.len() - 1]
    }
}

impl Function {
    /// Whether this is the kernel by which this project verifies a device.
    pub fn is_probe(&self) -> bool {
        self.name == "burn_ddp_probe"
    }

    /// # Safety
    /// That of `cuLaunchKernel`.
    pub unsafe fn launch(
        &'static self,
        grid: [u32; 3],
        block: [u32; 3],
        shared: usize,
        params: *const *const c_void,
    ) -> Result<Launch, Status> {
        let entry = self.entry().ok_or(INVALID_IMAGE)?;
        let mut arguments: Vec<u128> = Vec::new();
        for (number, size) in entry.sizes.iter().enumerate() {
            let at = arguments.len();
            arguments.resize(at + size.div_ceil(16).max(1), 0);
            // SAFETY: the caller passes a pointer to each parameter.
            unsafe {
                let from = (*params.add(number)).cast::<u8>();
                std::ptr::copy_nonoverlapping(from, arguments[at..].as_mut_ptr().cast(), *size);
            }
        }
        let other = |word: &u128| memory::owner(*word as usize, 1).is_some_and(|owner| owner != self.context);
        if arguments.iter().any(other) {
            eprintln!("CUDA stand-in: {} accesses memory of another device", self.name);
            return Err(ILLEGAL_ADDRESS);
        }
        for word in &mut arguments {
            let address = *word as usize;
            *word += (memory::of_device(address) - address) as u128;
        }
        Ok(Launch { function: self, grid, block, shared, arguments })
    }

    /// Number of threads for which the kernel was compiled.
    pub fn most_threads(&self) -> u32 {
        self.entry().map_or(u32::MAX, |entry| entry.most_threads)
    }

    fn entry(&self) -> Option<&Entry> {
        if self.entry.get().is_none() {
            let library = compiled(&self.source)?;
            let _ = self.entry.set(load(&library)?);
        }
        self.entry.get()
    }
}

/// The shared object of a source, compiled once for all processes.
fn compiled(source: &Path) -> Option<PathBuf> {
    let library = source.with_extension("so");
    if library.is_file() {
        return Some(library);
    }
    // Ranks need the same kernels at the same time.
    let lock = File::open(source).ok()?;
    lock.lock().ok()?;
    if library.is_file() {
        return Some(library);
    }
    // Unless another one has replaced the source since.
    let own = source.with_extension(format!("{}-{:?}", process::id(), thread::current().id()));
    let output = Command::new("g++").args(compiler::flags()).arg(source).arg("-o").arg(&own).output();
    match output {
        Ok(output) if output.status.success() => {
            fs::rename(&own, &library).ok()?;
            Some(library)
        }
        Ok(output) => {
            eprintln!("CUDA stand-in: {}: {}", source.display(), String::from_utf8_lossy(&output.stderr));
            None
        }
        Err(error) => {
            eprintln!("CUDA stand-in: g++ cannot be run ({error}); install g++");
            None
        }
    }
}

fn load(library: &Path) -> Option<Entry> {
    let path = CString::new(library.to_str()?).ok()?;
    // SAFETY: the library was compiled from the NVRTC stand-in's source; its symbols have these types.
    unsafe {
        let handle = dlopen(path.as_ptr(), NOW);
        if handle.is_null() {
            eprintln!("CUDA stand-in: {}", CStr::from_ptr(dlerror()).to_string_lossy());
            return None;
        }
        let symbol = |name: &CStr| dlsym(handle, name.as_ptr());
        *symbol(c"emulation").cast::<*const c_void>() = fiber::api();
        Some(Entry {
            thread: std::mem::transmute::<*mut c_void, _>(symbol(c"run_thread")),
            block: std::mem::transmute::<*mut c_void, _>(symbol(c"run_block")),
            sizes: {
                let count = *symbol(c"parameter_count").cast::<c_uint>() as usize;
                let sizes =
                    std::slice::from_raw_parts(*symbol(c"parameter_sizes").cast::<*const c_uint>(), count);
                sizes.iter().map(|size| *size as usize).collect()
            },
            most_threads: *symbol(c"most_threads").cast::<c_uint>(),
            shared: *symbol(c"shared_memory").cast::<*mut u8>(),
            meets: *symbol(c"threads_meet").cast::<c_int>() != 0,
            thread_index: symbol(c"threadIdx").cast(),
            block_index: symbol(c"blockIdx").cast(),
            block_size: symbol(c"blockDim").cast(),
            grid_size: symbol(c"gridDim").cast(),
        })
    }
}

impl Launch {
    /// Executes the launch.
    pub fn run(&self) {
        if is_measurement(&self.function.name) {
            let is_empty = self.function.name.contains("launch_overhead");
            return thread::sleep(if is_empty { EMPTY_LAUNCH } else { MEASUREMENT });
        }
        let began = Instant::now();
        let Some(entry) = self.function.entry.get() else { return };
        fault::doing(&self.function.name);
        let mut at = 0;
        let mut pointers: Vec<*const c_void> = Vec::new();
        for size in &entry.sizes {
            pointers.push(self.arguments[at..].as_ptr().cast());
            at += size.div_ceil(16).max(1);
        }
        let [gx, gy, gz] = self.grid;
        // SAFETY: only this thread uses the kernel's variables.
        unsafe {
            *entry.block_size = self.block.into();
            *entry.grid_size = self.grid.into();
            for (x, y, z) in (0..gz).flat_map(|z| (0..gy).flat_map(move |y| (0..gx).map(move |x| (x, y, z))))
            {
                *entry.block_index = Dim { x, y, z };
                if !entry.shared.is_null() {
                    std::ptr::write_bytes(entry.shared, 0xff, self.shared);
                }
                if entry.meets {
                    fiber::run_block(entry, pointers.as_ptr(), self.block);
                } else {
                    (entry.block)(pointers.as_ptr());
                }
            }
        }
        spent(&self.function.name, began.elapsed().as_secs_f64());
    }
}

/// Whether this is one of the kernels with which CubeCL measures the device's speed.
///
/// Their results are not used, so that they only take a fixed time.
fn is_measurement(name: &str) -> bool {
    ["_throughput_", "prime_buffer_", "launch_overhead"].iter().any(|part| name.contains(part))
}
