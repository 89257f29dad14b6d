//! A gradient's values on the host, and its identity.

use crate::{Error, Result, device_error::read_data};
#[cfg(feature = "cube")]
use burn::backend::Cube;
use burn::backend::Flex;
use burn::tensor::{DType, Device, Tensor, TensorData};
use kernels::host_tensor::{Host, contiguous, host, is_host};
#[cfg(feature = "cube")]
use std::hash::{DefaultHasher, Hash, Hasher};

/// The values of a tensor in host memory, contiguous and as f32. An f32 tensor that is so already is not copied.
///
/// # Errors
/// If the device fails.
pub(super) fn read(tensor: Tensor<1>) -> Result<Host> {
    if is_host(&tensor) {
        return Ok(contiguous(host(tensor)));
    }
    let values = read_data(tensor)?.convert::<f32>().try_into_vec();
    let failed = |error| Error::Io { what: "reading a tensor".into(), reason: format!("{error:?}") };
    values.map(|values| host(on_host(values))).map_err(failed)
}

/// Identity of a tensor, unique while it is alive.
pub(super) fn identity<const D: usize>(tensor: Tensor<D>) -> Option<u64> {
    #[cfg(feature = "cube")]
    if let Ok(tensor) = tensor.clone().try_into_primitive::<Cube>() {
        let mut hasher = DefaultHasher::new();
        tensor.id.hash(&mut hasher);
        return Some(hasher.finish());
    }
    tensor.try_into_primitive::<Flex>().ok().map(|tensor| tensor.bytes().as_ptr() as u64)
}

/// `[n]`, in host memory.
pub(super) fn on_host(values: Vec<f32>) -> Tensor<1> {
    let length = values.len();
    Tensor::from_data(TensorData::new(values, [length]), (&Device::flex(), DType::F32))
}
