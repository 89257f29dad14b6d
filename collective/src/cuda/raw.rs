//! Plain NCCL, as the baseline of measurements.

use super::{CudaSite, driver_error};
use crate::{
    Call, DType, Error, ProcessGroup, ReduceOp, Result,
    transport::nccl::{DeviceSite, NcclCommunicator},
};
use cudarc::driver::result::{free_sync, malloc_sync};
use std::{
    hint,
    sync::Arc,
    time::{Duration, Instant},
};

/// Durations of `rounds` NCCL all-reduces of `count` f32.
///
/// Each is measured from the call to the end on the GPU. The function uses its own communicator over the ranks of
/// `group` and no tensor or process group. Every rank must call it.
///
/// # Errors
/// NCCL's or the driver's.
pub fn raw_all_reduce(
    group: &ProcessGroup,
    index: usize,
    count: usize,
    rounds: usize,
) -> Result<Vec<Duration>> {
    let site = CudaSite::new(index)?;
    let stream = site.stream()?;
    let id = group.run_on(0, || site.library()?.unique_id())?;
    let (world, timeout) = (group.world(), Duration::from_secs(60));
    let nccl = Arc::new(NcclCommunicator::init(site.library()?, &id, world, &stream, timeout)?);
    // SAFETY: the device is current on this thread.
    let memory = unsafe { malloc_sync(count * 4) }.map_err(driver_error)?;
    let call = Call::new("raw all_reduce", DType::F32, count).reduce(ReduceOp::Sum).numbered(0, timeout);
    let once = || {
        let begun = Instant::now();
        let pointer = memory as usize as *mut std::ffi::c_void;
        // SAFETY: the memory has `count` elements and is freed after the event.
        unsafe { nccl.all_reduce(&call, pointer, pointer, stream.handle()) }?;
        let event = stream.clone().record_event()?;
        while !event.is_complete()? {
            if begun.elapsed() > timeout {
                return Err(Error::Invalid("NCCL did not finish an all_reduce".into()));
            }
            hint::spin_loop();
        }
        Ok(begun.elapsed())
    };
    let times = (0..rounds).map(|_| once()).collect();
    nccl.destroy(&stream, timeout);
    // SAFETY: nothing uses it any more.
    unsafe { free_sync(memory) }.map_err(driver_error)?;
    times
}
