//! Asynchronous copies from a GPU's memory.

use crate::{
    Error, Result,
    device_error::{cause, name},
};
use burn::backend::{Cube, tensor::FloatTensor};
use burn::tensor::{DType, Shape, Tensor, TensorData};
use burn_cubecl::{
    CubeBackend, CubeDevice, cubecl::server::CopyDescriptor, kernel::into_contiguous, tensor::CubeTensor,
};
use cubecl_runtime::client::Client;
use std::{
    collections::HashMap,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Mutex, PoisonError},
};

type Read = Pin<Box<dyn Future<Output = Result<Vec<TensorData>>> + Send>>;

/// A copy that the GPU makes after all work launched before.
pub(crate) struct QueuedRead(Option<Read>);

/// The GPU may still write to the host memory that the future owns.
impl Drop for QueuedRead {
    fn drop(&mut self) {
        std::mem::forget(self.0.take());
    }
}

impl QueuedRead {
    /// Queues the copy of `tensors` after launching what they depend on; `None` if one is not on a CUDA
    /// device.
    pub fn start(tensors: &[Tensor<1>]) -> Option<Self> {
        let device = name(&tensors.first()?.device());
        let tensors = tensors.iter().map(on_gpu).collect::<Option<Vec<_>>>()?;
        // The output of a failed launch cannot be resolved; reading it reports the cause.
        catch_unwind(AssertUnwindSafe(|| queue(tensors, device))).ok()
    }

    /// Waits until the copy is complete.
    ///
    /// # Errors
    /// If the GPU fails.
    pub fn wait(mut self) -> Result<Vec<TensorData>> {
        let read = self.0.take().and_then(burn::tensor::try_read_sync);
        read.unwrap_or_else(|| Err(Error::Invalid("its device cannot be read synchronously".into())))
    }
}

fn on_gpu(tensor: &Tensor<1>) -> Option<FloatTensor<Cube>> {
    let tensor = tensor.clone().inner().try_into_primitive::<Cube>().ok()?;
    matches!(tensor.client.device(), CubeDevice::Cuda(_)).then_some(tensor)
}

/// The client of a tensor's GPU, one per GPU, leaked because CubeCL's futures borrow it.
fn lasting(tensor: &CubeTensor) -> &'static Client {
    static CLIENTS: Mutex<Option<HashMap<CubeDevice, &'static Client>>> = Mutex::new(None);
    let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    let clients = clients.get_or_insert_default();
    clients.entry(tensor.device.clone()).or_insert_with(|| Box::leak(Box::new(tensor.client.clone())))
}

fn queue(tensors: Vec<FloatTensor<Cube>>, device: String) -> QueuedRead {
    let resolve = |tensor: FloatTensor<Cube>| {
        let client = tensor.client.clone();
        into_contiguous(client.resolve_tensor_float::<CubeBackend>(tensor))
    };
    let tensors: Vec<_> = tensors.into_iter().map(resolve).collect();
    let kinds: Vec<(Shape, DType)> = tensors.iter().map(|t| (t.meta.shape().clone(), t.dtype)).collect();
    let client = lasting(&tensors[0]);
    let copies = tensors.into_iter().map(|tensor| {
        let (shape, strides) = (tensor.meta.shape().clone(), tensor.meta.strides().clone());
        let size = tensor.elem_size();
        CopyDescriptor::new(tensor.handle.binding(), shape, strides, size)
    });
    // The copies are queued here; the future waits for the event behind them.
    let read = client.read_tensor_async(copies.collect());
    QueuedRead(Some(Box::pin(async move {
        let all = read.await.map_err(|error| Error::Device { device, reason: cause(&error) })?;
        let data = |(bytes, (shape, dtype))| TensorData::from_bytes(bytes, shape, dtype);
        Ok(all.into_iter().zip(kinds).map(data).collect())
    })))
}
