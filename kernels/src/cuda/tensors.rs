//! Burn's tensors as arguments and results of kernels.
//!
//! Burn's operations on a GPU pass two threads: one that fuses them, and CubeCL's, which launches kernels. The thread that
//! calls them runs ahead of both. [`operation`] keeps it so: its kernels are launched when the fusing thread comes to
//! them. To ask for a tensor's memory (`resolve_tensor_float`) is to wait for both threads, except in
//! [`after_queued`](super::after_queued).

use crate::autodiff::{self, Backward};
use burn::backend::{
    Cube, Dispatch, DispatchAutodiffContext, ExecutionError, GradientCheckpointingStrategy, StreamId,
    TensorMetadata,
    fusion::{self, NoOp, custom::OperationFn},
    ir::{CustomOpIr, HandleContainer, InitOperationIr, OperationIr, OperationOutput, TensorIr},
    tensor::FloatTensor,
};
use burn::tensor::{DType, Shape, Tensor};
use burn_cubecl::{
    CubeBackend, CubeDevice,
    fusion::CubeFusionHandle,
    kernel::{
        into_contiguous,
        matmul::{self, MatmulStrategy},
    },
    tensor::CubeTensor,
};
use cubecl_runtime::server::Handle;

/// A device's queue of operations that are not launched yet.
pub type FusionClient = fusion::Client<<CubeBackend as fusion::FusionBackend>::FusionRuntime>;

/// Whether tensors are on one CUDA device, in f32, not empty and [indexable](is_indexable).
pub(super) fn on_cuda(tensors: &[FloatTensor<Cube>]) -> bool {
    let device = |tensor: &FloatTensor<Cube>| tensor.client.device().clone();
    let Some(first) = tensors.first().map(device) else { return false };
    let fits = |tensor: &FloatTensor<Cube>| {
        let elements = tensor.shape().num_elements();
        device(tensor) == first && tensor.dtype() == DType::F32 && elements > 0 && is_indexable(elements)
    };
    matches!(first, CubeDevice::Cuda(_)) && tensors.iter().all(fits)
}

/// [`autodiff::run`] on CubeCL's devices; `None` with gradient checkpointing, which repeats Burn's operations only.
pub(super) fn run<F: Backward<Cube, N>, const N: usize, const D: usize>(
    inputs: [FloatTensor<Dispatch>; N],
    forward: impl FnOnce([FloatTensor<Cube>; N]) -> Option<(FloatTensor<Cube>, F)>,
) -> Option<Tensor<D>> {
    let is_repeated = |input: &FloatTensor<Dispatch>| {
        matches!(input.autodiff, DispatchAutodiffContext::Enabled(GradientCheckpointingStrategy::Balanced))
    };
    if inputs.iter().any(is_repeated) {
        return None;
    }
    autodiff::run(inputs, forward)
}

/// Whether kernels can index this many elements: their indices have 32 bits.
pub(super) fn is_indexable(elements: usize) -> bool {
    u32::try_from(elements).is_ok()
}

/// [`strided_operation`] whose inputs are contiguous, in memory of exactly their size.
pub(super) fn operation(
    name: &'static str,
    inputs: Vec<FloatTensor<Cube>>,
    outputs: &[(Shape, DType)],
    run: impl Fn(Vec<CubeTensor>) -> Result<Vec<CubeTensor>, ExecutionError> + Send + Sync + 'static,
) -> Vec<FloatTensor<Cube>> {
    let run = move |tensors: Vec<CubeTensor>| run(tensors.into_iter().map(exact).collect());
    strided_operation(name, inputs, outputs, run)
}

/// Queues an operation on `inputs`, of one device, and returns its results, whose shapes and types are `outputs`.
///
/// The thread that fuses operations calls `run` with the inputs, which may have any strides, and `run` returns as many results.
/// Operations without a common tensor may run in another order than they are queued.
pub fn strided_operation(
    name: &'static str,
    inputs: Vec<FloatTensor<Cube>>,
    outputs: &[(Shape, DType)],
    run: impl Fn(Vec<CubeTensor>) -> Result<Vec<CubeTensor>, ExecutionError> + Send + Sync + 'static,
) -> Vec<FloatTensor<Cube>> {
    let client = inputs[0].client.clone();
    let output = |(shape, dtype): &(Shape, DType)| {
        TensorIr::uninit(client.create_empty_handle(), shape.clone(), *dtype)
    };
    let outputs = outputs.iter().map(output).collect();
    queue(&client, name, inputs.into_iter().map(|tensor| tensor.into_ir()).collect(), outputs, run)
}

/// [`strided_operation`] on described tensors.
pub(super) fn queue(
    client: &FusionClient,
    name: &'static str,
    inputs: Vec<TensorIr>,
    outputs: Vec<TensorIr>,
    run: impl Fn(Vec<CubeTensor>) -> Result<Vec<CubeTensor>, ExecutionError> + Send + Sync + 'static,
) -> Vec<FloatTensor<Cube>> {
    let ids: Vec<_> = outputs.iter().map(|output| output.id).collect();
    let ir = CustomOpIr::new(name, &inputs, &outputs);
    let act = move |handles: &mut HandleContainer<CubeFusionHandle>| {
        // CubeCL's tensors of floats and of integers have one type.
        let tensors = inputs.iter().map(|input| handles.get_float_tensor::<CubeBackend>(input));
        let results = run(tensors.collect())?;
        ids.iter().zip(results).for_each(|(id, result)| {
            handles.register_float_tensor::<CubeBackend>(id, result);
        });
        Ok(())
    };
    client.register(StreamId::current(), OperationIr::Custom(ir), OperationFn(act))
}

/// [`strided_operation`] with a fixed number of inputs, and of results in f32.
pub(super) fn kernels<const I: usize, const O: usize>(
    name: &'static str,
    inputs: [FloatTensor<Cube>; I],
    outputs: [Shape; O],
    run: impl Fn([CubeTensor; I]) -> Result<[CubeTensor; O], ExecutionError> + Send + Sync + 'static,
) -> [FloatTensor<Cube>; O] {
    let run = move |tensors: Vec<CubeTensor>| Ok(run(all(tensors)?)?.into());
    let results = strided_operation(name, inputs.into(), &outputs.map(|shape| (shape, DType::F32)), run);
    results.try_into().expect("a tensor for each output")
}

/// The inputs of an operation, which are `N`.
pub(super) fn all<const N: usize>(tensors: Vec<CubeTensor>) -> Result<[CubeTensor; N], ExecutionError> {
    tensors.try_into().map_err(|_| ExecutionError::generic("wrong number of inputs"))
}

/// The matrix product, as Burn computes it.
pub(super) fn product(left: CubeTensor, right: CubeTensor) -> Result<CubeTensor, ExecutionError> {
    matmul::matmul(left, right, None, MatmulStrategy::default(), DType::F32)
        .map_err(|error| ExecutionError::generic(format!("{error:?}")))
}

/// The contiguous values of a tensor, in memory of exactly their size.
///
/// Kernels take the length of a buffer from its memory, which may be larger than the tensor.
pub(super) fn exact(tensor: CubeTensor) -> CubeTensor {
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
