//! Asynchronous copies from a GPU's memory.

use super::tensor::launcher;
use crate::{
    Error, Result,
    device_error::{cause, name},
};
use burn::backend::{Cube, StreamId, tensor::FloatTensor};
use burn::tensor::{DType, Shape, Tensor, TensorData};
use burn_cubecl::{CubeBackend, CubeDevice, cubecl::server::CopyDescriptor, kernel::into_contiguous};
use cubecl_runtime::server::Server as _;
use std::{
    future::Future,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::mpsc::{self, Receiver},
};

type Read = Pin<Box<dyn Future<Output = Result<Vec<TensorData>>> + Send>>;

/// A copy that the GPU makes after all work launched before.
pub(crate) struct QueuedRead(Option<Receiver<Read>>);

/// The GPU may still write to the host memory that the future in the channel owns.
impl Drop for QueuedRead {
    fn drop(&mut self) {
        mem::forget(self.0.take());
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
        let queued = self.0.take().and_then(|queued| queued.recv().ok());
        let read = queued.and_then(burn::tensor::try_read_sync);
        read.unwrap_or_else(|| Err(Error::Invalid("its device cannot be read synchronously".into())))
    }
}

fn on_gpu(tensor: &Tensor<1>) -> Option<FloatTensor<Cube>> {
    let tensor = tensor.clone().inner().try_into_primitive::<Cube>().ok()?;
    matches!(tensor.client.device(), CubeDevice::Cuda(_)).then_some(tensor)
}

fn queue(tensors: Vec<FloatTensor<Cube>>, device: String) -> QueuedRead {
    let resolve = |tensor: FloatTensor<Cube>| {
        let client = tensor.client.clone();
        into_contiguous(client.resolve_tensor_float::<CubeBackend>(tensor))
    };
    let tensors: Vec<_> = tensors.into_iter().map(resolve).collect();
    let kinds: Vec<(Shape, DType)> = tensors.iter().map(|t| (t.meta.shape().clone(), t.dtype)).collect();
    let (launcher, stream) = (launcher(&tensors[0]), StreamId::current());
    let copies = tensors.into_iter().map(|tensor| {
        let (shape, strides) = (tensor.meta.shape().clone(), tensor.meta.strides().clone());
        let size = tensor.elem_size();
        CopyDescriptor::new(tensor.handle.binding(), shape, strides, size)
    });
    let copies: Vec<_> = copies.collect();
    let (sender, queued) = mpsc::channel();
    launcher.submit(move |server| {
        // The copies are queued here; the future waits for the event behind them.
        let read = server.read(copies, stream);
        let read: Read = Box::pin(async move {
            let all = read.await.map_err(|error| Error::Device { device, reason: cause(&error) })?;
            let data = |(bytes, (shape, dtype))| TensorData::from_bytes(bytes, shape, dtype);
            Ok(all.into_iter().zip(kinds).map(data).collect())
        });
        if let Err(unread) = sender.send(read) {
            mem::forget(unread);
        }
    });
    launcher.flush_queue();
    QueuedRead(Some(queued))
}
