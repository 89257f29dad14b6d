//! Asynchronous copies of small tensors to the host.
//!
//! On a CUDA device the copy is queued behind the launched work, and the host waits only when it needs the values.
//! The device stays busy if the host launches more work in between. Burn's asynchronous `into_data` instead
//! queues the copy at the first access to the data, behind everything that was launched in between.

#[cfg(feature = "cuda")]
use crate::health;
use crate::{Error, Result, device_error::read_data};
use burn::tensor::{Tensor, TensorData};

/// Values of tensors of shape `[n]`, which may still be copied from one device.
pub(crate) enum Readback {
    Here(Result<Vec<Vec<f64>>>),
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
        let all = tensors.into_iter().map(|tensor| numbers(read_data(tensor)?)).collect::<Result<_>>()?;
        Ok(Self::Here(Ok(all)))
    }

    /// Whether the values are on the host.
    pub fn is_here(&self) -> bool {
        matches!(self, Self::Here(_))
    }

    /// Waits and returns the values of each tensor, which stay readable.
    ///
    /// # Errors
    /// If the device failed or dropped work: see [`health`](crate::health).
    pub fn wait(&mut self) -> Result<Vec<Vec<f64>>> {
        let all = match self {
            Self::Here(all) => all.clone(),
            #[cfg(feature = "cuda")]
            Self::Queued(queued) => {
                let all = queued.wait();
                health::check().and_then(|()| all?.into_iter().map(numbers).collect())
            }
        };
        *self = Self::Here(all.clone());
        all
    }
}

fn numbers(data: TensorData) -> Result<Vec<f64>> {
    let what = "reading a step's totals from the device".into();
    data.convert::<f64>().try_into_vec().map_err(|error| Error::Io { what, reason: format!("{error:?}") })
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
        let mut read = Readback::start(vec![one, other]).expect("the host");
        assert!(read.is_here());
        assert_eq!(read.wait().expect("the host"), [vec![1.5, 2.0], vec![f64::from(0.1f32)]]);
    }
}
