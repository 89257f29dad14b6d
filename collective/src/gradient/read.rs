//! Access to a gradient's values, on the host or on its device. Values on the host are not copied.

use crate::{Error, Result, tensor};
#[cfg(feature = "cube")]
use burn::backend::Cube;
use burn::backend::{Backend, Flex, TensorMetadata, ops::FloatTensorOps, tensor::FloatTensor};
use burn::tensor::{DType, Shape, Tensor, TensorData};
use kernels::host_tensor::{self, Host, contiguous};
use std::borrow::Cow;
#[cfg(feature = "cube")]
use std::hash::{DefaultHasher, Hash, Hasher};

/// A gradient on its device.
pub struct DeviceGradient {
    /// Values in row-major order.
    pub values: Tensor<1>,
    /// Identity of the tensor, unique while `values` are alive.
    pub identity: u64,
}

/// A gradient on the host.
pub(super) enum Values {
    /// A contiguous f32 tensor in the backend's host memory.
    InPlace(Host),
    /// Values read from a device, of any type.
    Read(TensorData),
}

impl Values {
    /// Values in row-major order, as f32.
    ///
    /// # Errors
    /// If the element type is not supported.
    pub fn as_f32(&self) -> Result<Cow<'_, [f32]>, String> {
        match self {
            Values::InPlace(tensor) => Ok(Cow::Borrowed(host_tensor::values(tensor))),
            Values::Read(data) => f32s(data),
        }
    }
}

/// The values of `data` as f32.
///
/// # Errors
/// If the element type is not supported.
pub(super) fn f32s(data: &TensorData) -> Result<Cow<'_, [f32]>, String> {
    match data.dtype() {
        DType::F32 => data.as_slice().map(Cow::Borrowed).map_err(|error| format!("{error:?}")),
        _ => {
            data.clone().convert::<f32>().try_into_vec().map(Cow::Owned).map_err(|error| format!("{error:?}"))
        }
    }
}

/// A gradient on the host.
///
/// # Errors
/// If the device fails.
pub(super) fn read<const D: usize>(grad: Tensor<D>) -> Result<TensorData> {
    let broken = |reason: String| Error::Io { what: "reading a gradient from its device".into(), reason };
    grad.try_into_data().map_err(|error| broken(error.to_string()))
}

/// A backend whose tensors can be read.
pub trait ReadBackend: Backend {
    /// Reads a gradient from its device to the host.
    ///
    /// # Errors
    /// If the device fails.
    fn read(tensor: FloatTensor<Self>) -> Result<Values, String> {
        tensor::read::<Self>(tensor).map(Values::Read)
    }

    /// The gradient on its device.
    fn keep(tensor: FloatTensor<Self>) -> DeviceGradient;
}

/// The [identity](DeviceGradient::identity) of a gradient.
pub(super) fn identity<const D: usize>(gradient: Tensor<D>) -> Option<u64> {
    #[cfg(feature = "cube")]
    if let Ok(tensor) = gradient.clone().try_into_primitive::<Cube>() {
        return Some(on_cube(&tensor));
    }
    gradient.try_into_primitive::<Flex>().ok().map(|tensor| on_flex(&tensor))
}

fn on_flex(tensor: &Host) -> u64 {
    tensor.bytes().as_ptr() as u64
}

#[cfg(feature = "cube")]
fn on_cube(tensor: &FloatTensor<Cube>) -> u64 {
    let mut hasher = DefaultHasher::new();
    tensor.id.hash(&mut hasher);
    hasher.finish()
}

impl ReadBackend for Flex {
    fn read(tensor: Host) -> Result<Values, String> {
        match tensor.dtype() {
            DType::F32 => Ok(Values::InPlace(contiguous(tensor))),
            _ => Ok(Values::Read(tensor.into_data())),
        }
    }

    fn keep(tensor: Host) -> DeviceGradient {
        let (identity, elements) = (on_flex(&tensor), tensor.shape().num_elements());
        let values = Tensor::from_primitive::<Flex>(Flex::float_reshape(tensor, Shape::new([elements])));
        DeviceGradient { values, identity }
    }
}

#[cfg(feature = "cube")]
impl ReadBackend for Cube {
    fn keep(tensor: FloatTensor<Self>) -> DeviceGradient {
        let (identity, elements) = (on_cube(&tensor), tensor.shape().num_elements());
        let values = Tensor::from_primitive::<Cube>(Cube::float_reshape(tensor, Shape::new([elements])));
        DeviceGradient { values, identity }
    }
}
