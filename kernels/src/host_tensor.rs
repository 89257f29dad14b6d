//! Conversion between slices and tensors of Flex, Burn's CPU backend.

use burn::backend::{Flex, TensorMetadata, ops::FloatTensorOps, tensor::FloatTensor};
use burn::tensor::{DType, Device, Element, Shape, Tensor, TensorData};
use bytemuck::Pod;
use std::ops::Range;

/// A tensor in host memory.
pub type Host = FloatTensor<Flex>;

/// The tensor in row-major order.
///
/// Unlike `to_contiguous`, it does not copy a contiguous part of a larger tensor.
pub fn contiguous(tensor: Host) -> Host {
    if tensor.is_contiguous() { tensor } else { tensor.to_contiguous() }
}

/// The values of a [`contiguous`] f32 tensor.
///
/// # Panics
/// If the tensor is not f32.
pub fn values(tensor: &Host) -> &[f32] {
    typed_values(tensor)
}

/// The values of a [`contiguous`] tensor of any type.
///
/// # Panics
/// If the tensor has another type.
pub fn typed_values<T: Element + Pod>(tensor: &Host) -> &[T] {
    let start = tensor.layout().start_offset();
    &tensor.storage::<T>()[start..start + tensor.shape().num_elements()]
}

/// The values of an f32 tensor for writing.
///
/// In place if no other tensor shares them, otherwise in a copy that replaces the tensor.
///
/// # Panics
/// If the tensor is not f32.
pub fn values_mut(tensor: &mut Host) -> &mut [f32] {
    let len = tensor.shape().num_elements();
    let exclusive =
        tensor.is_unique() && tensor.is_contiguous() && tensor.bytes().len() == size_of::<f32>() * len;
    if !exclusive {
        *tensor = self::tensor(values(&contiguous(tensor.clone())).to_vec(), tensor.shape());
    }
    tensor.storage_mut::<f32>()
}

/// A tensor that takes ownership of `values`.
pub fn tensor<T: Element>(values: Vec<T>, shape: impl Into<Shape>) -> Host {
    Flex::float_from_data(TensorData::new(values, shape.into()), &Default::default())
}

/// The part of a [`contiguous`] f32 tensor in a range of an axis.
pub(crate) fn part(whole: &Host, axis: usize, range: Range<usize>) -> Host {
    let mut shape = whole.shape();
    let inner: usize = shape[axis + 1..].iter().product();
    let all = shape[axis] * inner;
    shape[axis] = range.len();
    let mut part = Vec::with_capacity(shape.num_elements());
    for row in values(whole).chunks_exact(all.max(1)) {
        part.extend_from_slice(&row[range.start * inner..range.end * inner]);
    }
    tensor(part, shape)
}

/// The tensor as Flex stores it.
///
/// # Panics
/// If it is not on Flex, or on Flex with autodiff.
pub fn host<const D: usize>(tensor: Tensor<D>) -> Host {
    tensor.try_into_primitive::<Flex>().expect("a tensor of Flex without autodiff")
}

/// Whether `device` is Flex, with autodiff or without.
pub fn is_flex(device: &Device) -> bool {
    device.clone().without_autodiff() == Device::flex()
}

/// Whether `x` is f32 in host memory, as [`values`] requires.
pub fn is_host<const D: usize>(x: &Tensor<D>) -> bool {
    x.dtype() == DType::F32 && is_flex(&x.device())
}
