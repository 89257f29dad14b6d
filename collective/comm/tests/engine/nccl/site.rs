//! An emulated device in host memory, and the NCCL stand-in.
//!
//! The stand-in is compiled once per test run and copied for each test, because every copy has its own settings.

use burn_ddp_comm::{
    Call, DType, DevicePath, Element, Error, ProcessGroup, ReduceOp, Result,
    transport::nccl::{DeviceSite, Event, Library, Pending, Stream},
};
use std::{
    cell::UnsafeCell,
    ffi::{CStr, CString, c_char, c_int, c_void},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicI64, Ordering},
    },
};
use tempfile::TempDir;

/// A copy of the NCCL stand-in.
#[derive(Debug)]
pub struct StandIn {
    _folder: TempDir,
    pub library: &'static Library,
    symbols: libloading::Library,
}

fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("nccl-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let library = folder.join("libnccl.so.2");
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let mut command = Command::new(rustc);
        command.args(["--edition", "2024", "--crate-type", "cdylib", "-C", "opt-level=1", "-o"]);
        let output = command.arg(&library).arg(crate::NCCL_STAND_IN).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        library
    })
}

impl StandIn {
    pub fn new() -> Arc<Self> {
        Self::of(&[]).unwrap()
    }

    /// Creates a copy with these settings, each for one rank or all (−1).
    pub fn of(settings: &[(&str, i32, u64)]) -> Result<Arc<Self>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libnccl.so.2");
        std::fs::copy(built(), &path).unwrap();
        // SAFETY: the library is the stand-in, whose initialisers do nothing.
        let symbols = unsafe { libloading::Library::new(&path) }.unwrap();
        // SAFETY: the type is that of the stand-in's function.
        let set = unsafe { symbols.get::<unsafe extern "C" fn(*const c_char, c_int, u64)>(b"standInSet") };
        let set = set.unwrap();
        for (name, rank, value) in settings {
            let name = CString::new(*name).unwrap();
            // SAFETY: the name is a C string.
            unsafe { set(name.as_ptr(), *rank, *value) };
        }
        Ok(Arc::new(StandIn { _folder: folder, library: Library::first_of(&[path])?, symbols }))
    }

    /// All calls, in order.
    pub fn log(&self) -> Vec<String> {
        // SAFETY: the type is that of the stand-in's function.
        let log =
            unsafe { self.symbols.get::<unsafe extern "C" fn() -> *mut c_char>(b"standInLog") }.unwrap();
        // SAFETY: it returns a C string, which is leaked.
        let text = unsafe { CStr::from_ptr(log()) }.to_str().unwrap();
        text.lines().map(str::to_string).collect()
    }

    /// The calls of one rank.
    pub fn calls(&self, rank: usize) -> Vec<String> {
        let of = |line: &String| {
            let (call, whose) = line.split_once(' ')?;
            (whose.split('/').next() == Some(&rank.to_string())).then(|| call.to_string())
        };
        self.log().iter().filter_map(of).collect()
    }
}

/// The device of a rank.
#[derive(Debug)]
pub struct HostSite {
    pub stand_in: Arc<StandIn>,
    pub identity: Result<String>,
    /// Whether the device orders streams.
    pub orders: bool,
    /// Number of events that the device was made to wait for.
    pub held: Arc<AtomicI64>,
}

impl DeviceSite for HostSite {
    fn name(&self) -> String {
        "pretended:0".into()
    }
    fn identity(&self) -> Result<String> {
        self.identity.clone()
    }
    fn library(&self) -> Result<&'static Library> {
        Ok(self.stand_in.library)
    }
    fn stream(&self) -> Result<Arc<dyn Stream>> {
        // SAFETY: the type is that of the stand-in's function.
        let pending = unsafe { self.stand_in.symbols.get(b"standInPending") }.unwrap();
        let (pending, held, orders) = (*pending, self.held.clone(), self.orders);
        Ok(Arc::new(HostStream { pending, address: Box::new(0), given: AtomicI64::new(0), held, orders }))
    }
}

#[derive(Debug)]
struct HostStream {
    pending: unsafe extern "C" fn(*mut c_void) -> i64,
    /// Its address is the handle of the stream.
    address: Box<u8>,
    given: AtomicI64,
    held: Arc<AtomicI64>,
    orders: bool,
}

impl Stream for HostStream {
    fn handle(&self) -> *mut c_void {
        (&raw const *self.address).cast_mut().cast()
    }
    fn enter(&self) -> Result<()> {
        Ok(())
    }
    fn wait_for_device(&self) -> Result<()> {
        // The device computes nothing.
        Ok(())
    }
    fn record_event(self: Arc<Self>) -> Result<Arc<dyn Event>> {
        let number = self.given.fetch_add(1, Ordering::SeqCst) + 1;
        Ok(Arc::new(HostEvent { stream: self, number }))
    }
    fn orders_device(&self) -> bool {
        self.orders
    }
}

#[derive(Debug)]
struct HostEvent {
    stream: Arc<HostStream>,
    number: i64,
}

impl Event for HostEvent {
    fn is_complete(&self) -> Result<bool> {
        // SAFETY: it only returns a number.
        let pending = unsafe { (self.stream.pending)(self.stream.handle()) };
        Ok(self.stream.given.load(Ordering::SeqCst) - pending >= self.number)
    }
    fn hold_device(&self) -> Result<()> {
        self.stream.held.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// A site for a rank with its own device.
pub fn site(stand_in: &Arc<StandIn>, rank: usize) -> Result<Arc<dyn DeviceSite>, String> {
    Ok(Arc::new(HostSite::new(stand_in, format!("device {rank}"))))
}

impl HostSite {
    pub fn new(stand_in: &Arc<StandIn>, identity: String) -> Self {
        // Tests in other threads have devices of their own.
        let identity = Ok(format!("{identity} of {:p}", Arc::as_ptr(stand_in)));
        HostSite { stand_in: stand_in.clone(), identity, orders: true, held: Arc::default() }
    }
}

/// Attaches a device, which must succeed.
pub fn attach(group: &ProcessGroup, stand_in: &Arc<StandIn>) {
    let path = group.attach(site(stand_in, group.rank())).unwrap();
    assert!(matches!(&path, DevicePath::Nccl(name) if name.contains("NCCL 2.21.5")), "{path}");
}

/// Memory that a call accesses through pointers while others hold a reference.
pub struct Memory<T>(UnsafeCell<Vec<T>>);
// SAFETY: the tests access it only before and after a call.
unsafe impl<T> Sync for Memory<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Memory<T> {}

pub enum Op {
    AllReduce(ReduceOp),
    Reduce(ReduceOp, usize),
    Broadcast(usize),
    AllGather,
    ReduceScatter(ReduceOp),
}

/// Runs one collective on `data` and returns the received values.
pub fn collective<T: Element>(group: &ProcessGroup, op: &Op, data: &[T]) -> Result<Vec<T>> {
    let n = group.world_size();
    let (operation, reduce, root) = match op {
        Op::AllReduce(op) => ("all_reduce", Some(*op), None),
        Op::Reduce(op, root) => ("reduce", Some(*op), Some(*root)),
        Op::Broadcast(root) => ("broadcast", None, Some(*root)),
        Op::AllGather => ("all_gather", None, None),
        Op::ReduceScatter(op) => ("reduce_scatter", Some(*op), None),
    };
    let length = match op {
        Op::AllGather => data.len() * n,
        Op::ReduceScatter(_) => data.len() / n,
        Op::AllReduce(_) | Op::Reduce(..) | Op::Broadcast(_) => data.len(),
    };
    let send = Arc::new(Memory(UnsafeCell::new(data.to_vec())));
    let recv = Arc::new(Memory(UnsafeCell::new(vec![T::zeroed(); length])));
    let call = Call { reduce, root, ..Call::new(operation, <T as Element>::DTYPE, data.len()) };
    let memory = Box::new((send.clone(), recv.clone()));
    let pending = group.run_on_device(call, memory, |nccl, call, stream| {
        // SAFETY: both have the lengths of the call and are kept until the stream has completed it.
        unsafe {
            let (from, to) = ((*send.0.get()).as_ptr().cast(), (*recv.0.get()).as_mut_ptr().cast());
            match op {
                Op::AllReduce(_) => nccl.all_reduce(call, from, to, stream),
                Op::Reduce(..) => nccl.reduce(call, from, to, stream),
                Op::Broadcast(_) => nccl.broadcast(call, from, to, stream),
                Op::AllGather => nccl.all_gather(call, from, to, stream),
                Op::ReduceScatter(_) => nccl.reduce_scatter(call, from, to, stream),
            }
        }
    })?;
    pending.wait()?;
    // SAFETY: the stream has completed the call.
    Ok(unsafe { (*recv.0.get()).clone() })
}

/// Starts an all-reduce of `count` numbers.
pub fn start_sum(group: &ProcessGroup, count: usize) -> Result<Pending> {
    let memory = Arc::new(Memory(UnsafeCell::new(vec![1f32; count])));
    let call = Call::new("all_reduce", DType::F32, count).reduce(ReduceOp::Sum);
    group.start_on_device(call, Box::new(memory.clone()), |nccl, call, stream| {
        // SAFETY: the call keeps the memory, which is of its length.
        let at = unsafe { (*memory.0.get()).as_mut_ptr() };
        // SAFETY: as above.
        unsafe { nccl.all_reduce(call, at.cast_const().cast(), at.cast(), stream) }
    })
}

/// The first cause of a failed call; waits until the group has recorded it.
pub fn cause(group: &ProcessGroup) -> Error {
    for _ in 0..10_000 {
        if let Some(error) = group.failure() {
            return error.cause().clone();
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("the group does not know that it failed");
}
