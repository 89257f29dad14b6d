//! A gradient's values on the host, and its identity.

use crate::{Error, Result, device_error::read_data};
#[cfg(feature = "cube")]
use burn::backend::Cube;
use burn::backend::Flex;
use burn::tensor::{DType, Device, Tensor, TensorData};
use kernels::host_tensor::{self, Host, contiguous, host, is_host};
#[cfg(feature = "cube")]
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;

/// The values of a tensor on the host, in row-major order, as f32.
pub(super) enum Values {
    /// A contiguous f32 tensor in host memory, which is not copied.
    InPlace(Host),
    /// Values read from a device, or converted.
    Read(Vec<f32>),
}

impl Values {
    /// # Errors
    /// If the device fails.
    pub fn read(tensor: Tensor<1>) -> Result<Self> {
        if is_host(&tensor) {
            return Ok(Values::InPlace(contiguous(host(tensor))));
        }
        let values = read_data(tensor)?.convert::<f32>().try_into_vec();
        let failed = |error| Error::Io { what: "reading a tensor".into(), reason: format!("{error:?}") };
        values.map(Values::Read).map_err(failed)
    }

    pub fn into_vec(self) -> Vec<f32> {
        match self {
            Values::InPlace(_) => self.to_vec(),
            Values::Read(values) => values,
        }
    }
}

impl Deref for Values {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Values::InPlace(tensor) => host_tensor::values(tensor),
            Values::Read(values) => values,
        }
    }
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
