//! Batches that are split along the batch dimension, and outputs that are gathered again.

use crate::precision::Precision;
use burn::tensor::{Bool, Device, Float, FloatDType, Gradients, Int, Tensor};

/// Number of samples of each replica, near-equal; the first ones have one more.
///
/// If there are fewer samples than replicas, there are as many parts as samples.
pub fn shares(samples: usize, replicas: usize) -> Vec<usize> {
    let replicas = replicas.min(samples).max(1);
    (0..replicas).map(|i| samples / replicas + usize::from(i < samples % replicas)).collect()
}

/// A mini-batch, whose tensors have the samples along the first dimension.
///
/// Tensors and pairs implement it, and [`scatter!`](crate::scatter) implements it for a struct of such fields.
#[diagnostic::on_unimplemented(
    message = "the batch type `{Self}` does not implement `Scatter`",
    note = "for a struct of tensors: `burn_ddp::scatter!(Batch {{ inputs, targets }});`"
)]
pub trait Scatter: Sized + Clone + Send + 'static {
    /// Number of samples.
    fn samples(&self) -> usize;
    /// Splits the batch into parts of `sizes[i]` samples, which add up to [`samples`](Scatter::samples).
    fn scatter(self, sizes: &[usize]) -> Vec<Self>;
    /// Copies the batch to another device.
    fn to_device(self, device: &Device) -> Self;
    /// Casts the float tensors that the forward pass takes to `dtype`.
    ///
    /// Called with a [`Precision`](crate::precision::Precision) other than f32. The default returns the batch
    /// unchanged, for batches without such tensors.
    fn cast(self, _dtype: FloatDType) -> Self {
        self
    }
}

/// Casts a batch for the forward pass; f32 leaves it unchanged.
pub(crate) fn cast<B: Scatter>(batch: B, precision: Precision) -> B {
    match precision {
        Precision::F32 => batch,
        Precision::Bf16 | Precision::F16 => batch.cast(precision.dtype()),
    }
}

macro_rules! scatter_tensor {
    ($($kind:ty $(: $cast:ident)?),*) => { $(
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
            $(fn cast(self, dtype: FloatDType) -> Self {
                self.$cast(dtype)
            })?
        }
    )* };
}
scatter_tensor!(Float: cast, Int, Bool);

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
    fn cast(self, dtype: FloatDType) -> Self {
        (self.0.cast(dtype), self.1.cast(dtype))
    }
}

/// Implements [`Scatter`](crate::dp::Scatter) for a struct whose fields implement it, such as tensors.
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use burn_ddp_collective::dp::Scatter;
///
/// #[derive(Clone)]
/// struct Batch {
///     images: Tensor<4>,
///     labels: Tensor<1, Int>,
/// }
/// burn_ddp_collective::scatter!(Batch { images, labels });
///
/// let device = Device::flex();
/// let batch = Batch { images: Tensor::zeros([3, 1, 2, 2], &device), labels: Tensor::zeros([3], &device) };
/// let parts = batch.scatter(&[2, 1]);
/// assert_eq!((parts[0].images.dims(), parts[1].labels.dims()), ([2, 1, 2, 2], [1]));
/// ```
#[macro_export]
macro_rules! scatter {
    ($batch:ty { $first:ident $(, $field:ident)* $(,)? }) => {
        impl $crate::dp::Scatter for $batch {
            fn samples(&self) -> usize {
                $crate::dp::Scatter::samples(&self.$first)
            }
            fn scatter(self, sizes: &[usize]) -> Vec<Self> {
                let mut $first = $crate::dp::Scatter::scatter(self.$first, sizes).into_iter();
                $(let mut $field = $crate::dp::Scatter::scatter(self.$field, sizes).into_iter();)*
                sizes
                    .iter()
                    .map_while(|_| Some(Self { $first: $first.next()? $(, $field: $field.next()?)* }))
                    .collect()
            }
            fn to_device(self, device: &burn::tensor::Device) -> Self {
                Self {
                    $first: $crate::dp::Scatter::to_device(self.$first, device)
                    $(, $field: $crate::dp::Scatter::to_device(self.$field, device))*
                }
            }
            fn cast(self, dtype: burn::tensor::FloatDType) -> Self {
                Self {
                    $first: $crate::dp::Scatter::cast(self.$first, dtype)
                    $(, $field: $crate::dp::Scatter::cast(self.$field, dtype))*
                }
            }
        }
    };
}

/// Outputs of a replica's forward pass: float tensors with the samples along the first dimension.
pub trait Outputs: Scatter {
    /// Concatenates the parts, which are on one device.
    fn gather(parts: Vec<Self>) -> Self;
    /// Copies the values to the start of a new graph, with gradient tracking.
    fn leaf(self) -> Self;
    /// Copies the values without a graph.
    fn detach(self) -> Self;
    /// Casts the values to f32, for the criterion.
    fn to_f32(self) -> Self;
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
    fn to_f32(self) -> Self {
        self.cast(FloatDType::F32)
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
    fn to_f32(self) -> Self {
        (self.0.to_f32(), self.1.to_f32())
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
    use burn::tensor::DType;

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

    #[test]
    fn float_tensors_of_a_batch_are_cast() {
        let device = Device::flex();
        let labels = Tensor::<1, Int>::from_data([1], &device);
        let batch =
            (Tensor::<2>::from_data([[1.2]], &device), (labels.clone(), labels.clone().equal(labels)));
        let half = batch.clone().cast(FloatDType::BF16);
        assert_eq!(half.0.dtype(), DType::BF16);
        assert_eq!((half.1.0.dtype(), half.1.1.dtype()), (batch.1.0.dtype(), batch.1.1.dtype()));
    }
}
