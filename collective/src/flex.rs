//! Tensors of Flex, Burn's CPU backend, as slices and back: for operations that we compute ourselves.

use burn::backend::{Flex, TensorMetadata, ops::FloatTensorOps, tensor::FloatTensor};
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};

/// A tensor in the memory of the host.
pub type Host = FloatTensor<Flex>;

/// The tensor row by row, also as a part of a larger one: that is not copied, as `to_contiguous` would.
pub fn rows(tensor: Host) -> Host {
    if tensor.is_contiguous() { tensor } else { tensor.to_contiguous() }
}

/// The values of an f32 tensor that was made contiguous.
///
/// # Panics
/// If it is of another type.
pub fn values(tensor: &Host) -> &[f32] {
    let start = tensor.layout().start_offset();
    &tensor.storage::<f32>()[start..start + tensor.shape().num_elements()]
}

/// The values of an f32 tensor, to be changed: in place where no other tensor shares them, otherwise in a copy
/// that takes the tensor's place.
///
/// # Panics
/// If it is of another type.
pub fn values_mut(tensor: &mut Host) -> &mut [f32] {
    let len = tensor.shape().num_elements();
    let mine = tensor.is_unique() && tensor.is_contiguous() && tensor.bytes().len() == size_of::<f32>() * len;
    if !mine {
        *tensor = self::tensor(values(&rows(tensor.clone())).to_vec(), tensor.shape());
    }
    tensor.storage_mut::<f32>()
}

/// A tensor of `values`, which are not copied.
pub fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> Host {
    Flex::float_from_data(TensorData::new(values, shape.into()), &Default::default())
}

/// Whether `device` is Flex, with autodiff or without.
pub fn is_flex(device: &Device) -> bool {
    device.clone().without_autodiff() == Device::flex()
}

/// Whether [`values`] can read what `x` is made of.
pub fn is_host<const D: usize>(x: &Tensor<D>) -> bool {
    x.dtype() == DType::F32 && is_flex(&x.device())
}
