//! A stream for collectives on a GPU that CubeCL computes on.
//!
//! CubeCL's own streams are not public. It works in the device's primary context, as this does, and
//! since CUDA 12.5 an event can stand for all that a context has been given: the collective waits
//! for that, and all that the context is given later waits for the collective. With an older driver
//! the host waits in both places.

use super::{device, driver_error};
use crate::{
    Error, Result,
    transport::nccl::{DeviceSite, Library, Mark, Stream},
};
use cudarc::driver::{
    result::{self, event, primary_ctx, stream},
    sys,
};
use std::{
    env,
    ffi::c_void,
    fmt::Write,
    sync::{Arc, OnceLock},
};

/// If set, the host waits for collectives on a GPU even where the device could.
pub const HOST_SYNC: &str = "BURN_DDP_HOST_SYNC";

/// The first CUDA whose contexts have events.
const CONTEXT_EVENTS: i32 = 12_050;

type ContextCall = unsafe extern "C" fn(sys::CUcontext, sys::CUevent) -> sys::CUresult;

/// `cuCtxRecordEvent` and `cuCtxWaitEvent`, looked up because older drivers do not have them.
#[derive(Clone, Copy, Debug)]
struct ContextEvents {
    record: ContextCall,
    wait: ContextCall,
}

impl ContextEvents {
    fn get() -> Option<Self> {
        static EVENTS: OnceLock<Option<ContextEvents>> = OnceLock::new();
        *EVENTS.get_or_init(Self::load)
    }

    fn load() -> Option<Self> {
        if env::var_os(HOST_SYNC).is_some_and(|value| value != "0" && !value.is_empty())
            || super::driver_version().ok()? < CONTEXT_EVENTS
        {
            return None;
        }
        // SAFETY: the driver is loaded already, by cudarc; the types are those of cuda.h.
        unsafe {
            let driver = libloading::Library::new("libcuda.so.1").ok()?;
            let (record, wait) =
                (*driver.get(b"cuCtxRecordEvent\0").ok()?, *driver.get(b"cuCtxWaitEvent\0").ok()?);
            std::mem::forget(driver);
            Some(ContextEvents { record, wait })
        }
    }
}

/// A device's primary context, retained until the process ends: CubeCL does the same, and the driver
/// takes it down with the process in any case.
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
    /// The GPU at this position in `CUDA_VISIBLE_DEVICES`.
    ///
    /// # Errors
    /// If there is none, or the driver cannot start it.
    pub fn new(index: usize) -> Result<Self> {
        let device = device(index)?;
        // SAFETY: the device is one that the driver has given; it is never released.
        let context = unsafe { primary_ctx::retain(device) }.map_err(|error| match error.0 {
            sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY => {
                Error::Invalid(format!("cuda:{index} has no memory left to start on; see nvidia-smi"))
            }
            _ => driver_error(error),
        })?;
        Ok(CudaSite { index, context: Context(context) })
    }

    /// Makes it this thread's.
    pub(super) fn enter(&self) -> Result<()> {
        // SAFETY: the context is never released.
        unsafe { result::ctx::set_current(self.context.0) }.map_err(driver_error)
    }

    /// Whether the GPU itself orders collectives and computation.
    pub fn orders_device(&self) -> bool {
        ContextEvents::get().is_some()
    }
}

impl DeviceSite for CudaSite {
    fn name(&self) -> String {
        format!("cuda:{}", self.index)
    }

    fn identity(&self) -> Result<String> {
        let uuid = result::device::get_uuid(device(self.index)?).map_err(driver_error)?;
        let mut text = uuid.bytes.iter().fold(String::new(), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{:02x}", *byte as u8);
            text
        });
        // NCCL takes ranks with different ones to be on different machines, and so on different GPUs.
        if let Ok(host) = env::var("NCCL_HOSTID") {
            text = format!("{text} {host}");
        }
        Ok(text)
    }

    fn library(&self) -> Result<&'static Library> {
        Library::get()
    }

    fn stream(&self) -> Result<Box<dyn Stream>> {
        self.enter()?;
        let stream = stream::create(stream::StreamKind::NonBlocking).map_err(driver_error)?;
        let made = Made { stream, site: self.clone() };
        Ok(Box::new(CudaStream { before: Event::new()?, made: Arc::new(made), events: ContextEvents::get() }))
    }
}

/// The stream itself.
#[derive(Debug)]
struct Made {
    stream: sys::CUstream,
    site: CudaSite,
}
// SAFETY: the driver's streams may be used from any thread.
unsafe impl Send for Made {}
// SAFETY: the same.
unsafe impl Sync for Made {}

impl Drop for Made {
    fn drop(&mut self) {
        if self.site.enter().is_ok() {
            // SAFETY: nobody else has it. The driver lets its work end first; an error cannot be helped.
            let _ = unsafe { stream::destroy(self.stream) };
        }
    }
}

#[derive(Debug)]
struct CudaStream {
    /// Stands for what the device was given before a collective.
    before: Event,
    made: Arc<Made>,
    /// `None`: the host waits.
    events: Option<ContextEvents>,
}

impl Stream for CudaStream {
    fn handle(&self) -> *mut c_void {
        self.made.stream.cast()
    }

    fn enter(&self) -> Result<()> {
        self.made.site.enter()
    }

    fn wait_for_device(&self) -> Result<()> {
        let Some(events) = self.events else {
            return result::ctx::synchronize().map_err(driver_error);
        };
        let (context, flags) = (self.made.site.context.0, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT);
        // SAFETY: context, stream and event are alive, and of one device. Recording anew does not
        // change what earlier waits are for.
        unsafe {
            (events.record)(context, self.before.0).result().map_err(driver_error)?;
            stream::wait_event(self.made.stream, self.before.0, flags).map_err(driver_error)
        }
    }

    fn mark(&self) -> Result<Box<dyn Mark>> {
        let event = Event::new()?;
        // SAFETY: context, stream and event are alive, and of one device.
        unsafe {
            event::record(event.0, self.made.stream).map_err(driver_error)?;
            if let Some(events) = self.events {
                (events.wait)(self.made.site.context.0, event.0).result().map_err(driver_error)?;
            }
        }
        Ok(Box::new(CudaMark { event, _stream: self.made.clone() }))
    }

    fn orders_device(&self) -> bool {
        self.events.is_some()
    }
}

#[derive(Debug)]
struct Event(sys::CUevent);
// SAFETY: the driver's events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: the same.
unsafe impl Sync for Event {}

impl Event {
    fn new() -> Result<Self> {
        Ok(Event(event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).map_err(driver_error)?))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: nobody else has it; the driver keeps it while somebody waits. An error cannot be helped.
        let _ = unsafe { event::destroy(self.0) };
    }
}

#[derive(Debug)]
struct CudaMark {
    event: Event,
    /// Lives at least as long.
    _stream: Arc<Made>,
}

impl Mark for CudaMark {
    fn is_passed(&self) -> Result<bool> {
        // SAFETY: the event is alive.
        match unsafe { event::query(self.event.0) } {
            Ok(()) => Ok(true),
            Err(error) if error.0 == sys::cudaError_enum::CUDA_ERROR_NOT_READY => Ok(false),
            Err(error) => Err(driver_error(error)),
        }
    }
}
