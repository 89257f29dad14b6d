//! Collectives on Burn tensors where they are: in a GPU's memory.

use crate::{
    DType, DeviceCall, Error, ProcessGroup, ReduceOp, Result,
    communicator::Call,
    tensor::{Exchange, Kind},
    transport::nccl::NcclCommunicator,
};
use burn::backend::{
    Cube, StreamId, TensorMetadata,
    fusion::NoOp,
    ir::{InitOperationIr, OperationIr, OperationOutput},
    ops::FloatTensorOps,
    tensor::FloatTensor,
};
use burn::tensor::{DType as BurnType, Shape, Slice};
use burn_cubecl::{
    CubeBackend, CubeDevice, cubecl::cuda::CudaRuntime, fusion::CubeFusionHandle, kernel::into_contiguous,
    tensor::CubeTensor,
};
use cubecl_runtime::runtime::Runtime;
use std::ffi::c_void;

type Server = <CudaRuntime as Runtime>::Server;

/// Whether the group exchanges data in the memory of the device that `tensor` is on.
pub(crate) fn is_on(tensor: &FloatTensor<Cube>, group: &ProcessGroup) -> bool {
    let elements = tensor.shape().num_elements();
    let CubeDevice::Cuda(device) = tensor.device() else { return false };
    // A tensor without elements has no memory; all ranks' are so, or it is an error anyway.
    elements > 0 && group.device().is_some_and(|name| name == format!("cuda:{}", device.index))
}

/// One exchange, of a tensor for which [`is_on`] holds. It returns before the GPU is through with it;
/// what is computed with the result waits for it there.
///
/// # Errors
/// If the group fails, or the GPU.
pub(crate) fn exchange(tensor: FloatTensor<Cube>, exchange: &Exchange) -> Result<FloatTensor<Cube>> {
    let (group, shape) = (&exchange.group, tensor.shape());
    let (rank, size) = (group.rank(), group.world_size());
    let row: usize = shape[1..].iter().product();
    let equal = |rows: &[usize]| rows.iter().all(|count| *count == rows[0]);
    match &*exchange.kind {
        Kind::AllReduce(op) => all_reduce(tensor, group, *op),
        Kind::Broadcast(root) => {
            let call = Spec { root: Some(*root), ..Spec::new("device broadcast") };
            call.run(tensor, group, shape, |nccl, call, send, recv, stream| {
                // SAFETY: `run` gives memory of the call's size.
                unsafe { nccl.broadcast(call, send, recv, stream) }
            })
        }
        Kind::AllGather(rows) => {
            let longest = rows.iter().copied().max().unwrap_or_default();
            let padded = pad(tensor, &shape, longest);
            let mut whole = shape.clone();
            whole[0] = longest * size;
            let call = Spec::new("device all_gather");
            let all = call.run(padded, group, whole, |nccl, call, send, recv, stream| {
                // SAFETY: `run` gives memory of the call's size, and of all ranks' to receive.
                unsafe { nccl.all_gather(call, send, recv, stream) }
            })?;
            if equal(rows) {
                return Ok(all);
            }
            let parts = rows.iter().enumerate().filter(|(_, rows)| **rows > 0);
            let parts = parts.map(|(rank, rows)| slice(&all, rank * longest, *rows)).collect();
            Ok(Cube::float_cat(parts, 0))
        }
        Kind::ReduceScatter(rows) if equal(rows) && row > 0 => {
            let mut part = shape.clone();
            part[0] = rows[rank];
            let call = Spec { reduce: Some(ReduceOp::Sum), ..Spec::new("device reduce_scatter") };
            call.run(tensor, group, part, |nccl, call, send, recv, stream| {
                // SAFETY: `run` gives memory of the call's size, and of one part to receive.
                unsafe { nccl.reduce_scatter(call, send, recv, stream) }
            })
        }
        Kind::ReduceScatter(rows) => {
            let sum = all_reduce(tensor, group, ReduceOp::Sum)?;
            Ok(slice(&sum, rows[..rank].iter().sum(), rows[rank]))
        }
        Kind::Reduce(root) => {
            let (device, dtype) = (tensor.device(), tensor.dtype());
            let call = Spec { reduce: Some(ReduceOp::Sum), root: Some(*root), ..Spec::new("device reduce") };
            let sum = call.run(tensor, group, shape.clone(), |nccl, call, send, recv, stream| {
                // SAFETY: `run` gives memory of the call's size.
                unsafe { nccl.reduce(call, send, recv, stream) }
            })?;
            Ok(if rank == *root { sum } else { Cube::float_zeros(shape, &device, dtype.into()) })
        }
    }
}

fn all_reduce(tensor: FloatTensor<Cube>, group: &ProcessGroup, op: ReduceOp) -> Result<FloatTensor<Cube>> {
    let shape = tensor.shape();
    let call = Spec { reduce: Some(op), ..Spec::new("device all_reduce") };
    call.run(tensor, group, shape, |nccl, call, send, recv, stream| {
        // SAFETY: `run` gives memory of the call's size.
        unsafe { nccl.all_reduce(call, send, recv, stream) }
    })
}

/// Zeros behind the rows of a shorter tensor.
fn pad(tensor: FloatTensor<Cube>, shape: &Shape, longest: usize) -> FloatTensor<Cube> {
    if shape[0] == longest {
        return tensor;
    }
    let mut rest = shape.clone();
    rest[0] = longest - shape[0];
    let (device, dtype) = (tensor.device(), tensor.dtype());
    Cube::float_cat(vec![tensor, Cube::float_zeros(rest, &device, dtype.into())], 0)
}

/// `rows` rows of the first dimension.
fn slice(tensor: &FloatTensor<Cube>, from: usize, rows: usize) -> FloatTensor<Cube> {
    let shape = tensor.shape();
    let mut slices: Vec<Slice> = shape.iter().map(|length| Slice::from(0..*length)).collect();
    slices[0] = Slice::from(from..from + rows);
    Cube::float_slice(tensor.clone(), &slices)
}

/// A collective but for its type and count, which are the tensor's.
struct Spec {
    operation: &'static str,
    reduce: Option<ReduceOp>,
    root: Option<usize>,
}

impl Spec {
    fn new(operation: &'static str) -> Self {
        Spec { operation, reduce: None, root: None }
    }

    /// From `tensor` into a new one of shape `output`.
    fn run(
        self,
        tensor: FloatTensor<Cube>,
        group: &ProcessGroup,
        output: Shape,
        act: impl FnOnce(&NcclCommunicator, &Call, *const c_void, *mut c_void, *mut c_void) -> Result<()>,
    ) -> Result<FloatTensor<Cube>> {
        let (client, burn_type) = (tensor.client.clone(), tensor.dtype());
        let count = tensor.shape().num_elements();
        let call = DeviceCall {
            operation: self.operation,
            dtype: dtype(burn_type)?,
            count,
            reduce: self.reduce,
            root: self.root,
        };
        // Everything that it depends on is launched when this returns.
        let input: CubeTensor = into_contiguous(client.resolve_tensor_float::<CubeBackend>(tensor));
        let compute = input.client.clone();
        let handle = compute.empty(output.num_elements() * call.dtype.size());
        let result = CubeTensor::new_contiguous(
            compute.clone(),
            input.device.clone(),
            output.clone(),
            handle,
            burn_type,
        );
        let resource = |tensor: &CubeTensor| {
            compute.get_resource::<Server>(tensor.handle.clone()).map_err(|error| Error::Device {
                device: format!("{:?}", tensor.device),
                reason: error.to_string(),
            })
        };
        let (from, to) = (resource(&input)?, resource(&result)?);
        let (send, recv) = (from.resource().ptr as *const c_void, to.resource().ptr as *mut c_void);
        // They hold both allocations in place until the GPU is through with them.
        let memory = Box::new((from, to));
        let _on_its_way =
            group.run_on_device(call, memory, |nccl, call, stream| act(nccl, call, send, recv, stream))?;
        let result = CubeFusionHandle::from(result);
        let init = InitOperationIr::create(output, burn_type, || client.register_tensor_handle(result));
        Ok(client.register(StreamId::current(), OperationIr::Init(init), NoOp::<CubeBackend>::new()).output())
    }
}

fn dtype(dtype: BurnType) -> Result<DType> {
    match dtype {
        BurnType::F32 | BurnType::Flex32 => Ok(DType::F32),
        BurnType::F64 => Ok(DType::F64),
        BurnType::F16 => Ok(DType::F16),
        BurnType::BF16 => Ok(DType::BF16),
        other => Err(Error::Invalid(format!("collectives on tensors know float types, not {other:?}"))),
    }
}
