//! Tensors of the Flex backend as slices, and back.

use burn::backend::{Flex, TensorMetadata, ops::FloatTensorOps, tensor::FloatTensor};
use burn::tensor::{Shape, TensorData};

/// A tensor in the memory of the host.
pub type Host = FloatTensor<Flex>;

/// The values of an f32 tensor that was made contiguous.
pub fn values(tensor: &Host) -> &[f32] {
    let start = tensor.layout().start_offset();
    &tensor.storage::<f32>()[start..start + tensor.shape().num_elements()]
}

/// A tensor of `values`, which are not copied.
pub fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> Host {
    Flex::float_from_data(TensorData::new(values, shape.into()), &Default::default())
}
