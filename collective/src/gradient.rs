//! Gradients of all ranks made one: flattened into buckets, averaged over the samples of the
//! global batch, and put back.

use crate::{ProcessGroup, ReduceOp, Result};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Tensor, TensorData};
use std::ops::Range;

/// Bytes of the first bucket, small so that communication can start early, and of the others:
/// PyTorch DDP's sizes (`dist._DEFAULT_FIRST_BUCKET_BYTES`, `bucket_cap_mb`).
#[derive(Clone, Copy, Debug)]
pub struct BucketSizes {
    pub first: usize,
    pub rest: usize,
}

impl Default for BucketSizes {
    fn default() -> Self {
        Self { first: 1 << 20, rest: 25 << 20 }
    }
}

/// Where each gradient of one model lies in one flat buffer, and which ranges travel together.
///
/// Parameters are laid out in reverse field order, because backward finishes the last layers
/// first; buckets are reduced in index order on every rank.
#[derive(Debug)]
pub struct GradientBuckets {
    /// Offset of each trainable parameter, in field order.
    offsets: Vec<usize>,
    buckets: Vec<Range<usize>>,
    flat: Vec<f32>,
}

impl GradientBuckets {
    /// Plans the buckets for the trainable float parameters of `module`.
    pub fn new<M: Module>(module: &M, sizes: BucketSizes) -> Self {
        let mut lengths = Lengths::default();
        module.visit(&mut lengths);
        let mut offsets = vec![0; lengths.0.len()];
        let (mut buckets, mut start, mut end) = (Vec::new(), 0, 0);
        for (i, length) in lengths.0.iter().enumerate().rev() {
            offsets[i] = end;
            end += length;
            let cap = if buckets.is_empty() { sizes.first } else { sizes.rest };
            if (end - start) * size_of::<f32>() >= cap {
                buckets.push(start..end);
                start = end;
            }
        }
        // Even without a trainable parameter there is one bucket, to carry the totals.
        if start < end || buckets.is_empty() {
            buckets.push(start..end);
        }
        Self { offsets, buckets, flat: Vec::new() }
    }

    /// Turns this rank's gradients of a mean over its own samples into those of the mean over the
    /// global batch, the same bits on every rank. `weight` is this rank's part of the global
    /// batch, 0 for a rank that only keeps in step: its gradients are not read. `totals` travel
    /// with the last bucket and are summed.
    ///
    /// A parameter without a gradient here counts as zero. In a world of one nothing is touched.
    ///
    /// # Errors
    /// If the group fails.
    pub fn average<M: Module>(
        &mut self,
        mut grads: GradientsParams,
        module: &M,
        weight: f32,
        totals: &mut [f32],
        group: &ProcessGroup,
    ) -> Result<GradientsParams> {
        if group.world_size() == 1 {
            return Ok(grads);
        }
        let parameters = self.flatten(&mut grads, module, weight);
        self.flat.extend_from_slice(totals);
        for (i, bucket) in self.buckets.iter().enumerate() {
            let end = if i + 1 == self.buckets.len() { self.flat.len() } else { bucket.end };
            group.all_reduce(&mut self.flat[bucket.start..end], ReduceOp::Sum)?;
        }
        totals.copy_from_slice(&self.flat[parameters..]);
        self.unflatten(&mut grads, module);
        Ok(grads)
    }

    /// Writes `weight` × each gradient into its place; returns the number of elements.
    fn flatten<M: Module>(&mut self, grads: &mut GradientsParams, module: &M, weight: f32) -> usize {
        let parameters = self.buckets.last().map_or(0, |bucket| bucket.end);
        self.flat.clear();
        self.flat.resize(parameters, 0.0);
        if weight > 0.0 {
            module.visit(&mut Flatten { grads, weight, offsets: self.offsets.iter(), flat: &mut self.flat });
        }
        parameters
    }

    fn unflatten<M: Module>(&self, grads: &mut GradientsParams, module: &M) {
        module.visit(&mut Unflatten { grads, offsets: self.offsets.iter(), flat: &self.flat });
    }
}

/// Elements of each trainable float parameter, in field order.
#[derive(Default)]
struct Lengths(Vec<usize>);

impl ModuleVisitor for Lengths {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.is_require_grad() {
            self.0.push(param.lazy_shape().num_elements());
        }
    }
}

struct Flatten<'a> {
    grads: &'a mut GradientsParams,
    weight: f32,
    offsets: std::slice::Iter<'a, usize>,
    flat: &'a mut [f32],
}

impl ModuleVisitor for Flatten<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() {
            return;
        }
        let offset = *self.offsets.next().expect("planned for this module");
        let Some(grad) = self.grads.remove::<D>(param.id) else { return };
        let data = grad.into_data().convert::<f32>();
        let values = data.as_slice::<f32>().expect("converted to f32");
        let place = &mut self.flat[offset..offset + values.len()];
        place.iter_mut().zip(values).for_each(|(to, from)| *to = from * self.weight);
    }
}

struct Unflatten<'a> {
    grads: &'a mut GradientsParams,
    offsets: std::slice::Iter<'a, usize>,
    flat: &'a [f32],
}

impl ModuleVisitor for Unflatten<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() {
            return;
        }
        let (offset, value) = (*self.offsets.next().expect("planned for this module"), param.val());
        let shape = value.shape();
        let values = self.flat[offset..offset + shape.num_elements()].to_vec();
        // A gradient lives on the plain device under the autodiff one.
        let device = value.device().inner();
        let grad = Tensor::from_data(TensorData::new(values, shape), (&device, value.dtype()));
        self.grads.register::<D>(param.id, grad);
    }
}
