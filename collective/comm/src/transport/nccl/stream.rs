//! The device interface of a communicator, implemented for CUDA by `burn-ddp-collective`, and for tests.

use super::Library;
use crate::Result;
use std::{ffi::c_void, fmt, sync::Arc};

/// A device that ranks can exchange data on.
pub trait DeviceSite: Send + Sync + fmt::Debug {
    /// Name of the device, such as `cuda:0`.
    fn name(&self) -> String;
    /// Identity of the device: equal on two ranks if they use the same one, which NCCL refuses.
    ///
    /// # Errors
    /// The reason why the device cannot be used.
    fn identity(&self) -> Result<String>;
    /// This process's NCCL.
    ///
    /// # Errors
    /// The reason why it is missing.
    fn library(&self) -> Result<&'static Library>;
    /// Creates a stream on the device, which becomes the calling thread's current one.
    ///
    /// # Errors
    /// The driver's.
    fn stream(&self) -> Result<Arc<dyn Stream>>;
}

/// The stream of a communicator: a queue of work that the device executes in order.
pub trait Stream: Send + Sync + fmt::Debug {
    /// `cudaStream_t`
    fn handle(&self) -> *mut c_void;
    /// Makes the stream's device current on the calling thread.
    ///
    /// # Errors
    /// The driver's.
    fn enter(&self) -> Result<()>;
    /// Makes later work on this stream wait for all work that the device was given so far, on any stream.
    ///
    /// # Errors
    /// The driver's.
    fn wait_for_device(&self) -> Result<()>;
    /// Marks the end of the work on this stream.
    ///
    /// # Errors
    /// The driver's.
    fn record_event(self: Arc<Self>) -> Result<Arc<dyn Event>>;
    /// Whether the device orders streams by itself. If not, the host waits in
    /// [`wait_for_device`](Stream::wait_for_device) and for events.
    fn orders_device(&self) -> bool;
}

/// A point in a stream.
pub trait Event: Send + Sync + fmt::Debug {
    /// Whether the stream has reached it. Never blocks.
    ///
    /// # Errors
    /// The device's, for work before it.
    fn is_complete(&self) -> Result<bool>;
    /// Makes all work submitted to the device afterwards, on any stream, wait for it.
    ///
    /// # Errors
    /// The driver's.
    fn hold_device(&self) -> Result<()>;
}
