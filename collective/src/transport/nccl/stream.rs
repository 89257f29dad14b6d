//! What a communicator needs of the device that its work runs on. CUDA's is in
//! [`cuda`](crate::cuda); the tests have one of their own.

use super::{Library, UniqueId};
use crate::Result;
use std::{ffi::c_void, fmt};

/// A device that ranks can exchange data on.
pub trait DeviceSite: Send + Sync + fmt::Debug {
    /// What it is called in messages: `cuda:0`.
    fn name(&self) -> String;
    /// Equal on two ranks if they would use the very same device, which NCCL refuses.
    ///
    /// # Errors
    /// Why the device cannot be used.
    fn identity(&self) -> Result<String>;
    /// The NCCL of this process.
    ///
    /// # Errors
    /// Why there is none.
    fn library(&self) -> Result<&'static Library>;
    /// A stream of its own on the device, which becomes this thread's current one.
    ///
    /// # Errors
    /// The driver's.
    fn stream(&self) -> Result<Box<dyn Stream>>;

    /// Makes the id of a new communicator.
    ///
    /// # Errors
    /// NCCL's own.
    fn unique_id(&self) -> Result<UniqueId> {
        self.library()?.unique_id()
    }
}

/// Where a communicator's work waits its turn, in order.
pub trait Stream: Send + Sync + fmt::Debug {
    /// `cudaStream_t`
    fn handle(&self) -> *mut c_void;
    /// Makes the stream's device the calling thread's.
    ///
    /// # Errors
    /// The driver's.
    fn enter(&self) -> Result<()>;
    /// Lets what is put on the stream from now on wait for all that the device has been given.
    ///
    /// # Errors
    /// The driver's.
    fn wait_for_device(&self) -> Result<()>;
    /// A mark behind all that is on the stream. Where [`orders_device`](Stream::orders_device), all
    /// that the device is given from now on waits for it.
    ///
    /// # Errors
    /// The driver's.
    fn mark(&self) -> Result<Box<dyn Mark>>;
    /// Whether the device itself waits for marks. If not, the host must.
    fn orders_device(&self) -> bool;
}

/// A point in a stream.
pub trait Mark: Send + fmt::Debug {
    /// Whether the stream has come to it. Never blocks.
    ///
    /// # Errors
    /// The device's, for work before it.
    fn is_passed(&self) -> Result<bool>;
}
