//! A stream for collectives on a GPU that CubeCL computes on.
//!
//! CubeCL 0.11 does not expose its streams: `get_resource` returns memory without a stream, and its collectives use
//! a private stream and communicator. CubeCL and this module both use the device's primary context, and since CUDA
//! 12.5 an event can cover all work submitted to a context:
//!
//! - A collective waits for the work that was submitted to the context before it.
//! - Work submitted after [`Event::hold_device`], which is called before the first use of the result, waits for the
//!   collective. Kernels submitted in between run concurrently with it.
//! - The watchdog keeps the memory of a collective until it has ended, so that CubeCL cannot reuse it for those
//!   kernels.
//!
//! Events of a context include the streams of all groups. All groups of a process therefore enqueue their collectives
//! in the order of the calls, which is the same on all ranks.
//!
//! With an older driver, or one that refuses these events, the host waits in both places.
//!
//! With a stream handle from CubeCL (such as `ComputeClient::stream_handle(StreamId)`), both events could be limited
//! to the stream that wrote or reads the data.

use super::{CudaVersion, Toolkit, device, driver_error};
use crate::{
    Error, Result, host,
    transport::nccl::{DeviceSite, Event, Library, Stream},
};
use cudarc::driver::{
    DriverError,
    result::{self, event, primary_ctx, stream},
    sys,
};
use std::{
    env,
    ffi::c_void,
    fs,
    sync::{Arc, OnceLock},
};

/// Environment variable that makes the host wait for collectives.
pub const HOST_SYNC: &str = "BURN_DDP_HOST_SYNC";

/// The first version of CUDA with events of contexts.
const CONTEXT_EVENTS: CudaVersion = CudaVersion { major: 12, minor: 5 };

type ContextCall = unsafe extern "C" fn(sys::CUcontext, sys::CUevent) -> sys::CUresult;

/// `cuCtxRecordEvent` and `cuCtxWaitEvent`, which older drivers lack.
#[derive(Clone, Copy, Debug)]
struct ContextEvents {
    record: ContextCall,
    wait: ContextCall,
}

impl ContextEvents {
    /// The functions, if the driver has them and accepts calls on `site`.
    fn get(site: &CudaSite) -> Option<Self> {
        static EVENTS: OnceLock<Option<ContextEvents>> = OnceLock::new();
        *EVENTS.get_or_init(|| Self::load().filter(|events| events.are_accepted(site)))
    }

    fn are_accepted(&self, site: &CudaSite) -> bool {
        let (Ok(()), Ok(event)) = (site.enter(), DriverEvent::new()) else { return false };
        // SAFETY: context and event are alive, and of one device.
        [self.record, self.wait].iter().all(|call| unsafe { call(site.context.0, event.0) }.result().is_ok())
    }

    fn load() -> Option<Self> {
        if env::var_os(HOST_SYNC).is_some_and(|value| value != "0" && !value.is_empty())
            || Toolkit::get().ok()?.driver < CONTEXT_EVENTS
        {
            return None;
        }
        // SAFETY: cudarc has loaded the driver; the types are those of cuda.h.
        unsafe {
            let driver = libloading::Library::new("libcuda.so.1").ok()?;
            let (record, wait) =
                (*driver.get(b"cuCtxRecordEvent\0").ok()?, *driver.get(b"cuCtxWaitEvent\0").ok()?);
            std::mem::forget(driver);
            Some(ContextEvents { record, wait })
        }
    }
}

/// A device's primary context, retained until the process ends, as CubeCL does.
#[derive(Clone, Copy, Debug)]
struct Context(sys::CUcontext);
// SAFETY: any thread may make a context its own.
unsafe impl Send for Context {}
// SAFETY: the same.
unsafe impl Sync for Context {}

/// A GPU of this machine.
#[derive(Clone, Debug)]
pub struct CudaSite {
    index: usize,
    context: Context,
}

impl CudaSite {
    /// Opens the GPU at this position in `CUDA_VISIBLE_DEVICES`.
    ///
    /// # Errors
    /// If there is none, or the driver cannot initialise it.
    pub fn new(index: usize) -> Result<Self> {
        let device = device(index)?;
        // SAFETY: the device is one that the driver has given; it is never released.
        let context = unsafe { primary_ctx::retain(device) }.map_err(|error| match error.0 {
            sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY => {
                Error::Invalid(format!("cuda:{index} has no free memory; see nvidia-smi"))
            }
            _ => driver_error(error),
        })?;
        Ok(CudaSite { index, context: Context(context) })
    }

    /// Makes the GPU current on this thread.
    pub(super) fn enter(&self) -> Result<()> {
        // SAFETY: the context is never released.
        unsafe { result::ctx::set_current(self.context.0) }.map_err(|error| self.failed(error))
    }

    /// The error for a driver call about this GPU.
    fn failed(&self, error: DriverError) -> Error {
        let reason = format!("the NVIDIA driver returned {:?} ({})", error.0, error.0 as u32);
        Error::Device { device: self.name(), reason }
    }
}

impl DeviceSite for CudaSite {
    fn name(&self) -> String {
        format!("cuda:{}", self.index)
    }

    /// Machine and PCI address, which NCCL compares, too. The UUIDs of MIG instances of one GPU differ.
    fn identity(&self) -> Result<String> {
        let mut address = [0_u8; 32];
        let (to, length) = (address.as_mut_ptr().cast(), address.len() as i32);
        // SAFETY: the driver writes text of at most this length.
        unsafe { sys::cuDeviceGetPCIBusId(to, length, device(self.index)?) }
            .result()
            .map_err(|error| self.failed(error))?;
        let address = String::from_utf8_lossy(&address);
        // NCCL treats ranks with different values as being on different machines, and so on different GPUs.
        let machine =
            env::var("NCCL_HOSTID").or_else(|_| fs::read_to_string("/proc/sys/kernel/random/boot_id"));
        let machine = machine.unwrap_or_else(|_| host());
        Ok(format!("{} {}", machine.trim(), address.trim_end_matches('\0')))
    }

    fn library(&self) -> Result<&'static Library> {
        Library::get()
    }

    fn stream(&self) -> Result<Arc<dyn Stream>> {
        self.enter()?;
        let stream = stream::create(stream::StreamKind::NonBlocking).map_err(|error| self.failed(error))?;
        Ok(Arc::new(CudaStream { stream, site: self.clone(), events: ContextEvents::get(self) }))
    }
}

/// A CUDA stream.
#[derive(Debug)]
struct CudaStream {
    stream: sys::CUstream,
    site: CudaSite,
    /// `None` if the host waits.
    events: Option<ContextEvents>,
}
// SAFETY: the driver's streams may be used from any thread.
unsafe impl Send for CudaStream {}
// SAFETY: the same.
unsafe impl Sync for CudaStream {}

impl Drop for CudaStream {
    fn drop(&mut self) {
        if self.site.enter().is_ok() {
            // SAFETY: nothing else uses the stream. The driver completes its work first. An error cannot be handled.
            let _ = unsafe { stream::destroy(self.stream) };
        }
    }
}

impl Stream for CudaStream {
    fn handle(&self) -> *mut c_void {
        self.stream.cast()
    }

    fn enter(&self) -> Result<()> {
        self.site.enter()
    }

    fn wait_for_device(&self) -> Result<()> {
        let failed = |error| self.site.failed(error);
        let Some(events) = self.events else { return result::ctx::synchronize().map_err(failed) };
        let event = DriverEvent::new().map_err(failed)?;
        // SAFETY: context and event are alive, and of one device.
        unsafe { (events.record)(self.site.context.0, event.0) }.result().map_err(failed)?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: stream and event are alive, and of one device.
        unsafe { stream::wait_event(self.stream, event.0, flags) }.map_err(failed)
    }

    fn record_event(self: Arc<Self>) -> Result<Arc<dyn Event>> {
        let failed = |error| self.site.failed(error);
        let event = DriverEvent::new().map_err(failed)?;
        // SAFETY: stream and event are alive, and of one device.
        unsafe { event::record(event.0, self.stream) }.map_err(failed)?;
        Ok(Arc::new(CudaEvent { event, stream: self }))
    }

    fn orders_device(&self) -> bool {
        self.events.is_some()
    }
}

#[derive(Debug)]
struct DriverEvent(sys::CUevent);
// SAFETY: the driver's events may be used from any thread.
unsafe impl Send for DriverEvent {}
// SAFETY: the same.
unsafe impl Sync for DriverEvent {}

impl DriverEvent {
    fn new() -> std::result::Result<Self, DriverError> {
        event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).map(DriverEvent)
    }
}

impl Drop for DriverEvent {
    fn drop(&mut self) {
        // SAFETY: nothing else uses the event; the driver keeps it while a stream waits. An error cannot be handled.
        let _ = unsafe { event::destroy(self.0) };
    }
}

#[derive(Debug)]
struct CudaEvent {
    event: DriverEvent,
    /// Outlives the event.
    stream: Arc<CudaStream>,
}

impl Event for CudaEvent {
    fn is_complete(&self) -> Result<bool> {
        // SAFETY: the event is alive.
        match unsafe { event::query(self.event.0) } {
            Ok(()) => Ok(true),
            Err(error) if error.0 == sys::cudaError_enum::CUDA_ERROR_NOT_READY => Ok(false),
            Err(error) => Err(self.stream.site.failed(error)),
        }
    }

    fn hold_device(&self) -> Result<()> {
        let Some(events) = self.stream.events else { return Ok(()) };
        let site = &self.stream.site;
        site.enter()?;
        // SAFETY: context and event are alive, and of one device.
        unsafe { (events.wait)(site.context.0, self.event.0) }.result().map_err(|error| site.failed(error))
    }
}
