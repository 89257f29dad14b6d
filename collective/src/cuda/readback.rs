//! Asynchronous copies from a GPU's memory.

use super::tensor::launcher;
use crate::{
    Error, Result,
    device_error::{cause, name, read_data},
};
use burn::backend::{Cube, StreamId, tensor::FloatTensor};
use burn::tensor::{DType, Shape, Tensor, TensorData};
use burn_cubecl::{CubeBackend, CubeDevice, cubecl::server::CopyDescriptor, kernel::into_contiguous};
use cubecl_runtime::server::Server as _;
use kernels::cuda::after_queued;
use std::{
    future::Future,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::mpsc::{self, Receiver, Sender},
};

type Read = Pin<Box<dyn Future<Output = Result<Vec<TensorData>>> + Send>>;

/// A copy that the GPU makes after all work queued before.
pub(crate) struct QueuedRead {
    queued: Option<Receiver<Read>>,
    /// Reading the output of a failed launch reports the cause.
    tensors: Vec<Tensor<1>>,
}

/// The GPU may still write to the host memory that the future in the channel owns.
impl Drop for QueuedRead {
    fn drop(&mut self) {
        mem::forget(self.queued.take());
    }
}

impl QueuedRead {
    /// Queues the copy of `tensors` after the operations on which they depend; `None` if one is not on a CUDA device.
    pub fn start(tensors: &[Tensor<1>]) -> Option<Self> {
        let device = name(&tensors.first()?.device());
        let copied = tensors.iter().map(on_gpu).collect::<Option<Vec<_>>>()?;
        let (sender, queued) = mpsc::channel();
        let client = copied[0].client.clone();
        after_queued(&client, move || {
            // The sender is then dropped.
            let _ = catch_unwind(AssertUnwindSafe(|| queue(copied, device, sender)));
        });
        Some(Self { queued: Some(queued), tensors: tensors.to_vec() })
    }

    /// Waits until the copy is complete.
    ///
    /// # Errors
    /// If the GPU fails.
    pub fn wait(&mut self) -> Result<Vec<TensorData>> {
        match self.queued.take().and_then(|queued| queued.recv().ok()) {
            Some(read) => {
                let read = burn::tensor::try_read_sync(read);
                read.unwrap_or_else(|| Err(Error::Invalid("its device cannot be read synchronously".into())))
            }
            None => mem::take(&mut self.tensors).into_iter().map(read_data).collect(),
        }
    }
}

fn on_gpu(tensor: &Tensor<1>) -> Option<FloatTensor<Cube>> {
    let tensor = tensor.clone().inner().try_into_primitive::<Cube>().ok()?;
    matches!(tensor.client.device(), CubeDevice::Cuda(_)).then_some(tensor)
}

/// On the thread that fuses operations: submits the copy of `tensors` to the launching thread.
fn queue(tensors: Vec<FloatTensor<Cube>>, device: String, sender: Sender<Read>) {
    let launcher = launcher(&tensors[0].client);
    let resolve = |tensor: FloatTensor<Cube>| {
        let client = tensor.client.clone();
        into_contiguous(client.resolve_tensor_float::<CubeBackend>(tensor))
    };
    let tensors: Vec<_> = tensors.into_iter().map(resolve).collect();
    let kinds: Vec<(Shape, DType)> = tensors.iter().map(|t| (t.meta.shape().clone(), t.dtype)).collect();
    let stream = StreamId::current();
    let copies = tensors.into_iter().map(|tensor| {
        let (shape, strides) = (tensor.meta.shape().clone(), tensor.meta.strides().clone());
        let size = tensor.elem_size();
        CopyDescriptor::new(tensor.handle.binding(), shape, strides, size)
    });
    let copies: Vec<_> = copies.collect();
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
}
