//! Asynchronous copies of small tensors to the host.
//!
//! On a CUDA device the copy is queued behind the launched work, and the host waits only when it needs the values.
//! The device stays busy if the host launches more work in between. Burn's asynchronous `into_data` instead
//! queues the copy at the first access to the data, behind everything that was launched in between.

#[cfg(feature = "cuda")]
use crate::health;
use crate::{Error, Result, device_error::read_data};
use burn::tensor::{Tensor, TensorData};

/// Tensors of shape `[n]` that are being copied from one device.
pub(crate) enum Readback {
    Here(Vec<TensorData>),
    #[cfg(feature = "cuda")]
    Queued(crate::cuda::QueuedRead),
}

impl Readback {
    /// Starts to copy `tensors`, which are on one device.
    ///
    /// On a CUDA device, the launching thread queues the copy behind the work on which they depend. Others copy at once.
    ///
    /// # Errors
    /// If the device fails.
    pub fn start(tensors: Vec<Tensor<1>>) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if let Some(queued) = crate::cuda::QueuedRead::start(&tensors) {
            return Ok(Self::Queued(queued));
        }
        Ok(Self::Here(tensors.into_iter().map(read_data).collect::<Result<_>>()?))
    }

    /// Whether the values are on the host.
    pub fn is_here(&self) -> bool {
        match self {
            Self::Here(_) => true,
            #[cfg(feature = "cuda")]
            Self::Queued(_) => false,
        }
    }

    /// Waits and returns the values of each tensor.
    ///
    /// # Errors
    /// If the device failed or dropped work: see [`health`](crate::health).
    pub fn wait(self) -> Result<Vec<Vec<f64>>> {
        let all = match self {
            Self::Here(all) => all,
            #[cfg(feature = "cuda")]
            Self::Queued(queued) => {
                let all = queued.wait();
                health::check()?;
                all?
            }
        };
        let values =
            |data: TensorData| data.convert::<f64>().try_into_vec().map_err(|e| broken(format!("{e:?}")));
        all.into_iter().map(values).collect()
    }
}

fn broken(reason: String) -> Error {
    Error::Io { what: "reading a step's totals from the device".into(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn host_tensors_are_available_at_once() {
        let device = Device::flex();
        let (one, other) =
            (Tensor::<1>::from_data([1.5f32, 2.0], &device), Tensor::from_data([0.1f32], &device));
        let read = Readback::start(vec![one, other]).expect("the host");
        assert!(read.is_here());
        assert_eq!(read.wait().expect("the host"), [vec![1.5, 2.0], vec![f64::from(0.1f32)]]);
    }
}
