//! Batches that can be divided along their batch dimension, and outputs that can be gathered again.

use burn::tensor::{Bool, Device, Float, Gradients, Int, Tensor};

/// The number of samples of each of `replicas`: near-equal, the first ones one more, as many parts as
/// there are samples if those are fewer.
pub fn shares(samples: usize, replicas: usize) -> Vec<usize> {
    let replicas = replicas.min(samples).max(1);
    (0..replicas).map(|i| samples / replicas + usize::from(i < samples % replicas)).collect()
}

/// A mini-batch: everything in it has the samples along the first dimension.
pub trait Scatter: Sized + Clone + Send + 'static {
    /// Samples in it.
    fn samples(&self) -> usize;
    /// `sizes[i]` samples for part i, in order; the sizes add up to [`samples`](Scatter::samples).
    fn scatter(self, sizes: &[usize]) -> Vec<Self>;
    /// The same on another device.
    fn to_device(self, device: &Device) -> Self;
}

macro_rules! scatter_tensor {
    ($($kind:ty),*) => { $(
        impl<const D: usize> Scatter for Tensor<D, $kind> {
            fn samples(&self) -> usize {
                self.dims()[0]
            }
            fn scatter(self, sizes: &[usize]) -> Vec<Self> {
                self.split_with_sizes(sizes.to_vec(), 0)
            }
            fn to_device(self, device: &Device) -> Self {
                Tensor::to_device(self, device)
            }
        }
    )* };
}
scatter_tensor!(Float, Int, Bool);

impl<A: Scatter, B: Scatter> Scatter for (A, B) {
    fn samples(&self) -> usize {
        self.0.samples()
    }
    fn scatter(self, sizes: &[usize]) -> Vec<Self> {
        self.0.scatter(sizes).into_iter().zip(self.1.scatter(sizes)).collect()
    }
    fn to_device(self, device: &Device) -> Self {
        (self.0.to_device(device), self.1.to_device(device))
    }
}

/// Outputs of a replica's forward pass: float tensors with the samples along the first dimension.
pub trait Outputs: Scatter {
    /// All parts after one another; they are on one device.
    fn gather(parts: Vec<Self>) -> Self;
    /// The same values at the start of a new graph, with a gradient.
    fn leaf(self) -> Self;
    /// The same values outside any graph.
    fn detach(self) -> Self;
    /// The gradient of a leaf; zeros where there is none.
    fn gradient(&self, gradients: &Gradients) -> Self;
    /// `Σ self · weight`, `[1]`: its gradient is `weight` put through the graph behind `self`.
    fn weighted_sum(self, weight: Self) -> Tensor<1>;
}

impl<const D: usize> Outputs for Tensor<D> {
    fn gather(parts: Vec<Self>) -> Self {
        Tensor::cat(parts, 0)
    }
    fn leaf(self) -> Self {
        Tensor::from_inner(self.inner()).require_grad()
    }
    fn detach(self) -> Self {
        self.inner()
    }
    fn gradient(&self, gradients: &Gradients) -> Self {
        self.grad(gradients).unwrap_or_else(|| self.clone().inner().zeros_like())
    }
    fn weighted_sum(self, weight: Self) -> Tensor<1> {
        (self * Tensor::from_inner(weight)).sum()
    }
}

impl<A: Outputs, B: Outputs> Outputs for (A, B) {
    fn gather(parts: Vec<Self>) -> Self {
        let (a, b) = parts.into_iter().unzip();
        (A::gather(a), B::gather(b))
    }
    fn leaf(self) -> Self {
        (self.0.leaf(), self.1.leaf())
    }
    fn detach(self) -> Self {
        (self.0.detach(), self.1.detach())
    }
    fn gradient(&self, gradients: &Gradients) -> Self {
        (self.0.gradient(gradients), self.1.gradient(gradients))
    }
    fn weighted_sum(self, weight: Self) -> Tensor<1> {
        self.0.weighted_sum(weight.0) + self.1.weighted_sum(weight.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_near_equal_and_lose_nothing() {
        assert_eq!(shares(64, 3), [22, 21, 21]);
        assert_eq!(shares(2, 3), [1, 1]);
        assert_eq!(shares(0, 3), [0]);
        for (samples, replicas) in [(1, 1), (7, 2), (100, 7)] {
            assert_eq!(shares(samples, replicas).iter().sum::<usize>(), samples);
        }
    }

    #[test]
    fn a_batch_is_dealt_out_in_order() {
        let device = Device::flex();
        let batch = (
            Tensor::<2>::from_data([[1., 2.], [3., 4.], [5., 6.]], &device),
            Tensor::<1, Int>::from_data([1, 2, 3], &device),
        );
        let parts = batch.scatter(&[2, 1]);
        assert_eq!(parts[1].0.to_data().try_to_vec::<f32>().unwrap(), [5., 6.]);
        assert_eq!(parts[0].1.dims(), [2]);
    }
}
