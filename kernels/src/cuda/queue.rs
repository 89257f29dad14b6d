//! Tasks on the thread that fuses a device's operations.

use super::tensors::FusionClient;
use burn::backend::{DeviceHandle, DeviceId, DeviceService, DeviceServiceStage, ServerUtilitiesHandle};
use burn_cubecl::{CubeDevice, cubecl::cuda::CudaDevice};
use std::sync::{Arc, Mutex, PoisonError};

/// A service without state on the thread that fuses a device's operations.
///
/// CubeCL runs all services of a device that produce work for its launching thread on one thread, in the order in which
/// a thread submits to them.
struct FusingThread;

impl DeviceService for FusingThread {
    fn init(_: DeviceId) -> Self {
        Self
    }

    fn utilities(&self) -> ServerUtilitiesHandle {
        Arc::new(())
    }

    fn stage() -> DeviceServiceStage {
        DeviceServiceStage::Upstream
    }
}

/// The devices that are prepared.
static PREPARED: Mutex<Vec<(DeviceId, DeviceHandle<FusingThread>)>> = Mutex::new(Vec::new());

/// Makes [`after_queued`] run ahead of a CUDA device's fusing thread. Must be called before other threads use the device.
///
/// CubeCL creates a service under a lock that an operation on the fusing thread may need, and waits for that thread.
/// Therefore this waits for the operations that are queued.
pub fn prepare(index: usize) {
    let device = CubeDevice::from(CudaDevice::new(index));
    let id = device.to_id();
    let mut prepared = PREPARED.lock().unwrap_or_else(PoisonError::into_inner);
    if !prepared.iter().any(|(other, _)| *other == id) {
        // An operation that has failed is reported where its result is read.
        let _ = FusionClient::new(device).try_sync(|| ());
        prepared.push((id, DeviceHandle::new(id)));
    }
}

/// Launches the operations that this thread has queued on the device, and then calls `act`.
///
/// The device's fusing thread does both, before it comes to later operations. If the device is [prepared](prepare), this
/// thread does not wait, and a panic in `act` is logged. `act` may resolve tensors.
pub fn after_queued(client: &FusionClient, act: impl FnOnce() + Send + 'static) {
    let id = client.device().to_id();
    let prepared = PREPARED.lock().unwrap_or_else(PoisonError::into_inner);
    let handle = prepared.iter().find(|(other, _)| *other == id).map(|(_, handle)| handle.clone());
    drop(prepared);
    let on_thread = client.clone();
    let task = move || {
        on_thread.sync(|| ());
        act();
    };
    match handle {
        Some(handle) => {
            // On its own thread, the client calls at once.
            handle.submit(move |_| task());
            handle.flush_queue();
        }
        None => task(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc::channel, time::Duration};

    /// No kernel runs, so that no GPU is needed.
    fn client(index: usize) -> FusionClient {
        FusionClient::new(CubeDevice::from(CudaDevice::new(index)))
    }

    #[test]
    fn tasks_run_in_order_and_the_caller_of_a_prepared_device_does_not_wait() {
        prepare(70);
        let client = client(70);
        let ((go, wait), (done, order)) = (channel::<()>(), channel());
        let first = done.clone();
        after_queued(&client, move || {
            let passed = wait.recv_timeout(Duration::from_secs(60)).is_ok();
            first.send(("first", passed)).expect("a receiver");
        });
        after_queued(&client, move || done.send(("second", true)).expect("a receiver"));
        go.send(()).expect("a task that waits");
        assert_eq!(order.iter().collect::<Vec<_>>(), [("first", true), ("second", true)]);
    }

    #[test]
    fn the_caller_of_another_device_waits() {
        let (done, order) = channel();
        after_queued(&client(71), move || done.send(()).expect("a receiver"));
        order.try_recv().expect("it has run");
    }
}
