//! Burn's tensors as arguments and results of kernels.

use burn::backend::{
    Cube, StreamId, TensorMetadata,
    fusion::{self, NoOp},
    ir::{InitOperationIr, OperationIr, OperationOutput},
    tensor::{FloatTensor, IntTensor},
};
use burn::tensor::{DType, Shape};
use burn_cubecl::{
    CubeBackend, CubeDevice, fusion::CubeFusionHandle, kernel::into_contiguous, tensor::CubeTensor,
};
use cubecl_runtime::server::Handle;

/// A device's queue of operations that are not launched yet.
pub type FusionClient = fusion::Client<<CubeBackend as fusion::FusionBackend>::FusionRuntime>;

/// Whether tensors are on one CUDA device, in f32 and not empty.
pub(super) fn on_cuda(tensors: &[FloatTensor<Cube>]) -> bool {
    let device = |tensor: &FloatTensor<Cube>| tensor.client.device().clone();
    let Some(first) = tensors.first().map(device) else { return false };
    let fits = |tensor: &FloatTensor<Cube>| {
        device(tensor) == first && tensor.dtype() == DType::F32 && tensor.shape().num_elements() > 0
    };
    matches!(first, CubeDevice::Cuda(_)) && tensors.iter().all(fits)
}

/// The contiguous values of a tensor, after launching what they depend on.
///
/// Kernels take the length of a buffer from its memory, which may be larger than the tensor.
pub(super) fn resolve(tensor: FloatTensor<Cube>) -> CubeTensor {
    exact(tensor.client.clone().resolve_tensor_float::<CubeBackend>(tensor))
}

/// [`resolve`] for integers of 32 bits.
pub(super) fn resolve_int(tensor: IntTensor<Cube>) -> CubeTensor {
    exact(tensor.client.clone().resolve_tensor_int::<CubeBackend>(tensor))
}

fn exact(tensor: CubeTensor) -> CubeTensor {
    let mut tensor = into_contiguous(tensor);
    tensor.handle = part(&tensor.handle, 0, elements(&tensor));
    tensor
}

/// The memory of `length` elements, from element `from`.
pub(super) fn part(handle: &Handle, from: usize, length: usize) -> Handle {
    let [from, used] = [from, length].map(|elements| (elements * size_of::<f32>()) as u64);
    let rest = handle.size_in_used() - from - used;
    handle.clone().offset_start(from).offset_end(rest)
}

pub(super) fn elements(tensor: &CubeTensor) -> usize {
    tensor.shape().num_elements()
}

/// Makes a result of a kernel a tensor of Burn.
pub fn register(client: &FusionClient, result: CubeTensor) -> FloatTensor<Cube> {
    let (shape, dtype) = (result.shape(), result.dtype);
    let result = CubeFusionHandle::from(result);
    let init = InitOperationIr::create(shape, dtype, || client.register_tensor_handle(result));
    client.register(StreamId::current(), OperationIr::Init(init), NoOp::<CubeBackend>::new()).output()
}

pub(super) fn empty(like: &CubeTensor, shape: Shape) -> CubeTensor {
    let handle = like.client.empty(shape.num_elements() * size_of::<f32>());
    CubeTensor::new_contiguous(like.client.clone(), like.device.clone(), shape, handle, DType::F32)
}

pub(super) fn empty_like(tensor: &CubeTensor) -> CubeTensor {
    empty(tensor, tensor.shape())
}
