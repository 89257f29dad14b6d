//! Collectives on Burn tensors in a GPU's memory.

use crate::{
    Call, DType, Error, ProcessGroup, ReduceOp, Result,
    device_error::cause,
    exchange::{Exchange, Kind},
    transport::nccl::{NcclCommunicator, Pending},
};
use burn::backend::{Cube, DeviceHandle, StreamId, TensorMetadata, ops::FloatTensorOps, tensor::FloatTensor};
use burn::tensor::{DType as BurnType, Shape};
use burn_cubecl::{
    CubeBackend, CubeDevice, cubecl::cuda::CudaRuntime, kernel::into_contiguous, tensor::CubeTensor,
};
use cubecl_runtime::{
    runtime::Runtime,
    server::{ServerError, ServerStorage},
    storage::{ComputeStorage, ManagedResource},
};
use kernels::cuda::{FusionClient, after_queued, register, strided_operation};
use std::{
    any::Any,
    ffi::c_void,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

type Server = <CudaRuntime as Runtime>::Server;

fn name(device: &CubeDevice) -> String {
    match device {
        CubeDevice::Cuda(device) => format!("cuda:{}", device.index),
        #[allow(unreachable_patterns, reason = "in builds with CUDA alone")]
        other => format!("{other:?}"),
    }
}

/// Whether the group's device transport is on the device of `tensor`.
pub(crate) fn is_on(tensor: &FloatTensor<Cube>, group: &ProcessGroup) -> bool {
    let elements = tensor.shape().num_elements();
    // A tensor without elements has no memory. Those of all ranks are empty, or the call is an error.
    elements > 0 && group.device().is_some_and(|attached| attached == name(&tensor.device()))
}

/// Runs a collective on a tensor for which [`is_on`] is true. Rows are equal on all ranks.
///
/// It returns before the GPU has finished; computations with the result wait on the GPU.
///
/// # Errors
/// If the group or the GPU fails.
pub(crate) fn exchange(tensor: FloatTensor<Cube>, exchange: &Exchange) -> Result<FloatTensor<Cube>> {
    let Exchange { group, kind, of_step } = exchange;
    let (shape, device, dtype) = (tensor.shape(), tensor.device(), tensor.dtype());
    let result = if *of_step {
        let (result, started) = start(tensor, group, kind)?;
        started.hold_device();
        result
    } else {
        let (call, act) = call(&tensor, kind)?;
        let run =
            |Memory { kept, send, recv }: Memory| group.run_on_device(call, kept, bind(act, send, recv));
        with_memory(tensor, kind.output_shape(shape.clone(), group.rank()), run)?.0
    };
    Ok(match *kind {
        Kind::Reduce(root) if root != group.rank() => Cube::float_zeros(shape, &device, dtype.into()),
        _ => result,
    })
}

/// The call of a collective on `tensor`, and what enqueues it.
fn call(tensor: &FloatTensor<Cube>, kind: &Kind) -> Result<(Call, Enqueue)> {
    let (dtype, count) = (dtype(tensor.dtype())?, tensor.shape().num_elements());
    let call = |operation| Call::new(operation, dtype, count);
    let spec: (Call, Enqueue) = match *kind {
        Kind::AllReduce(op) => (call("device all_reduce").reduce(op), NcclCommunicator::all_reduce),
        Kind::AllGather(_) => (call("device all_gather"), NcclCommunicator::all_gather),
        Kind::ReduceScatter(_) => {
            (call("device reduce_scatter").reduce(ReduceOp::Sum), NcclCommunicator::reduce_scatter)
        }
        Kind::Broadcast(root) => (call("device broadcast").root(root), NcclCommunicator::broadcast),
        Kind::Reduce(root) => {
            (call("device reduce").reduce(ReduceOp::Sum).root(root), NcclCommunicator::reduce)
        }
    };
    Ok(spec)
}

/// Enqueues a call: its memory to send and to receive, and the stream.
type Enqueue = unsafe fn(&NcclCommunicator, &Call, *const c_void, *mut c_void, *mut c_void) -> Result<()>;

/// `act` with its memory: to send, that of the call's size; to receive, that of the operation's result.
fn bind(
    act: Enqueue,
    send: *const c_void,
    recv: *mut c_void,
) -> impl FnOnce(&NcclCommunicator, &Call, *mut c_void) -> Result<()> {
    // SAFETY: the callers create the memory in these sizes, and keep it until the collective has ended.
    move |nccl, call, stream| unsafe { act(nccl, call, send, recv, stream) }
}

/// Starts a collective on a tensor for which [`is_on`] is true. The result must not be read before
/// [`Started::hold_device`].
///
/// The thread that launches kernels enqueues it behind those that compute the tensor, and this thread waits for neither
/// that one nor the one that fuses operations. If it fails there, so does the group.
///
/// # Errors
/// If the group fails.
pub(crate) fn start(
    tensor: FloatTensor<Cube>,
    group: &ProcessGroup,
    kind: &Kind,
) -> Result<(FloatTensor<Cube>, Started)> {
    let ((call, act), output) = (call(&tensor, kind)?, kind.output_shape(tensor.shape(), group.rank()));
    let client = tensor.client.clone();
    let started = Started { group: group.clone(), client: client.clone(), pending: Arc::default() };
    let Some(place) = group.place_on_device(call.clone())? else {
        let start =
            |Memory { kept, send, recv }: Memory| group.start_on_device(call, kept, bind(act, send, recv));
        let (result, pending) = with_memory(tensor, output, start)?;
        let _ = started.pending.set(pending);
        return Ok((result, started));
    };
    let (place, pending, stream) = (Mutex::new(Some(place)), started.pending.clone(), StreamId::current());
    let (results, on_thread) = ([(output.clone(), tensor.dtype())], client.clone());
    let enqueue = move |mut tensors: Vec<CubeTensor>| {
        let (input, result) = with_result(tensors.swap_remove(0), output.clone());
        let bindings = [&input, &result].map(|tensor| tensor.handle.clone().binding());
        let (device, launcher, pending) = (name(&input.device), launcher(&on_thread), pending.clone());
        if let Some(place) = place.lock().unwrap_or_else(PoisonError::into_inner).take() {
            launcher.submit(move |server| {
                match Memory::new(bindings.map(|binding| server.get_resource(binding, stream)), &device) {
                    Ok(Memory { kept, send, recv }) => {
                        // An error has failed the group.
                        let enqueued = place.enqueue(kept, bind(act, send, recv));
                        let _ = enqueued.map(|enqueued| pending.set(enqueued));
                    }
                    Err(error) => _ = place.fail(error),
                }
            });
            launcher.flush_queue();
        }
        Ok(vec![result])
    };
    let result = strided_operation("collective", vec![tensor], &results, enqueue).swap_remove(0);
    // In the order of the calls, which operations without a common tensor may not keep.
    after_queued(&client, || ());
    Ok((result, started))
}

/// The contiguous values of `tensor`, and a new tensor of shape `output` on its device.
fn with_result(tensor: CubeTensor, output: Shape) -> (CubeTensor, CubeTensor) {
    let dtype = tensor.dtype;
    let input = into_contiguous(tensor);
    let client = input.client.clone();
    let handle = client.empty(output.num_elements() * input.elem_size());
    let result = CubeTensor::new_contiguous(client, input.device.clone(), output, handle, dtype);
    (input, result)
}

/// Calls `act` with the memory of `tensor` and of a new tensor of shape `output`, which is returned with its result.
///
/// All kernels that were submitted before, and those that compute `tensor`, are then on the device's queue.
fn with_memory<R>(
    tensor: FloatTensor<Cube>,
    output: Shape,
    act: impl FnOnce(Memory) -> Result<R>,
) -> Result<(FloatTensor<Cube>, R)> {
    let fusion = tensor.client.clone();
    let (input, result) = with_result(fusion.resolve_tensor_float::<CubeBackend>(tensor), output);
    let resource = |tensor: &CubeTensor| tensor.client.get_resource::<Server>(tensor.handle.clone());
    let done = act(Memory::new([resource(&input), resource(&result)], &name(&input.device))?)?;
    Ok((register(&fusion, result), done))
}

type Resource = ManagedResource<<<Server as ServerStorage>::Storage as ComputeStorage>::Resource>;

/// The memory of a collective.
struct Memory {
    /// Keeps both allocations in place until the collective has ended.
    kept: Box<dyn Any + Send>,
    send: *const c_void,
    recv: *mut c_void,
}

impl Memory {
    fn new([from, to]: [Result<Resource, ServerError>; 2], device: &str) -> Result<Self> {
        let failed = |error: ServerError| Error::Device { device: device.into(), reason: cause(&error) };
        let (from, to) = (from.map_err(failed)?, to.map_err(failed)?);
        let (send, recv) = (from.resource().ptr as *const c_void, to.resource().ptr as *mut c_void);
        Ok(Memory { kept: Box::new((from, to)), send, recv })
    }
}

/// A collective that the GPU runs beside other work.
pub(crate) struct Started {
    group: ProcessGroup,
    client: FusionClient,
    /// Set when it is enqueued.
    pending: Arc<OnceLock<Pending>>,
}

impl Started {
    /// Makes the GPU's later work wait for the collective. If that fails, so does the group.
    pub fn hold_device(&self) {
        let (group, pending) = (self.group.clone(), self.pending.clone());
        let client = self.client.clone();
        after_queued(&self.client, move || {
            let launcher = launcher(&client);
            launcher.submit(move |_| {
                // A collective that is not there has failed the group.
                if let Some(Err(error)) = pending.get().map(Pending::hold_device) {
                    group.abort(error.to_string());
                }
            });
            // A task that waits for more tasks would keep the group alive.
            launcher.flush_queue();
        });
    }
}

/// CubeCL's thread that launches kernels on a GPU, in the order in which they are submitted.
pub(super) fn launcher(client: &FusionClient) -> DeviceHandle<Server> {
    DeviceHandle::new(client.device().to_id())
}

fn dtype(dtype: BurnType) -> Result<DType> {
    match dtype {
        BurnType::F32 | BurnType::Flex32 => Ok(DType::F32),
        BurnType::F64 => Ok(DType::F64),
        BurnType::F16 => Ok(DType::F16),
        BurnType::BF16 => Ok(DType::BF16),
        other => Err(Error::Invalid(format!("collectives on tensors support float types, not {other:?}"))),
    }
}
