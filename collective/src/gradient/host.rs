//! A gradient's values on the host, without a copy where that is where they are.

use crate::{
    flex::{self, Host},
    tensor,
};
use burn::backend::{Backend, Flex, tensor::FloatTensor};
use burn::tensor::{DType, TensorData};
use std::borrow::Cow;

/// A gradient on the host.
pub(super) enum Values {
    /// In the memory of the backend, contiguous, f32.
    There(Host),
    /// Brought from a device, of any type.
    Brought(TensorData),
}

impl Values {
    /// Row by row, as f32.
    ///
    /// # Errors
    /// If they are of a type that cannot be read.
    pub fn as_f32(&self) -> Result<Cow<'_, [f32]>, String> {
        match self {
            Values::There(tensor) => Ok(Cow::Borrowed(flex::values(tensor))),
            Values::Brought(data) => f32s(data),
        }
    }
}

/// The values of `data` as f32.
///
/// # Errors
/// If they are of a type that cannot be read.
pub(super) fn f32s(data: &TensorData) -> Result<Cow<'_, [f32]>, String> {
    match data.dtype() {
        DType::F32 => data.as_slice().map(Cow::Borrowed).map_err(|error| format!("{error:?}")),
        _ => {
            data.clone().convert::<f32>().try_into_vec().map(Cow::Owned).map_err(|error| format!("{error:?}"))
        }
    }
}

/// A backend whose tensors can be read.
pub trait ReadBackend: Backend {
    /// From its device to the host.
    ///
    /// # Errors
    /// If the device fails.
    fn read(tensor: FloatTensor<Self>) -> Result<Values, String> {
        tensor::read::<Self>(tensor).map(Values::Brought)
    }
}

impl ReadBackend for Flex {
    fn read(tensor: Host) -> Result<Values, String> {
        match tensor.dtype() {
            DType::F32 => Ok(Values::There(flex::rows(tensor))),
            _ => Ok(Values::Brought(tensor.into_data())),
        }
    }
}

#[cfg(feature = "cube")]
impl ReadBackend for burn::backend::Cube {}
