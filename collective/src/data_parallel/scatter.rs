//! Batches that are split along the batch dimension, and outputs that are gathered again.

use burn::tensor::{Bool, Device, Float, Gradients, Int, Tensor};

/// Number of samples of each replica, near-equal; the first ones have one more.
///
/// If there are fewer samples than replicas, there are as many parts as samples.
pub fn shares(samples: usize, replicas: usize) -> Vec<usize> {
    let replicas = replicas.min(samples).max(1);
    (0..replicas).map(|i| samples / replicas + usize::from(i < samples % replicas)).collect()
}

/// A mini-batch, whose tensors have the samples along the first dimension.
pub trait Scatter: Sized + Clone + Send + 'static {
    /// Number of samples.
    fn samples(&self) -> usize;
    /// Splits the batch into parts of `sizes[i]` samples, which add up to [`samples`](Scatter::samples).
    fn scatter(self, sizes: &[usize]) -> Vec<Self>;
    /// Copies the batch to another device.
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
    /// Concatenates the parts, which are on one device.
    fn gather(parts: Vec<Self>) -> Self;
    /// Copies the values to the start of a new graph, with gradient tracking.
    fn leaf(self) -> Self;
    /// Copies the values without a graph.
    fn detach(self) -> Self;
    /// The gradient of a leaf; zeros if it has none.
    fn gradient(&self, gradients: &Gradients) -> Self;
    /// Computes `Σ self · weight`, `[1]`, whose backward pass propagates `weight` through the graph of `self`.
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
    fn shares_are_near_equal_and_complete() {
        assert_eq!(shares(64, 3), [22, 21, 21]);
        assert_eq!(shares(2, 3), [1, 1]);
        assert_eq!(shares(0, 3), [0]);
        for (samples, replicas) in [(1, 1), (7, 2), (100, 7)] {
            assert_eq!(shares(samples, replicas).iter().sum::<usize>(), samples);
        }
    }

    #[test]
    fn a_batch_is_scattered_in_order() {
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
