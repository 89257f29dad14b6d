//! Communication hooks: the trait that users implement, the hooks that send 16-bit numbers, and the sender that
//! runs a hook in the background.

use super::buckets::BucketPlan;
use crate::{Element, ProcessGroup, ReduceOp, Result, Work};
use half::{bf16, f16};
use std::{fmt, ops::Range, sync::Arc};

/// Communication hook: reduces one gradient bucket, as in PyTorch.
///
/// It replaces a rank's bucket by the sum over all ranks. It is called once per bucket and step, in bucket order, on
/// a separate thread during backward. State between steps, such as error feedback, is stored by [`Bucket::index`]
/// behind a lock.
///
/// ```
/// use burn_ddp_collective::{ProcessGroup, ReduceOp, Result, gradient::{Bucket, CommHook}};
///
/// /// Sums in f64.
/// #[derive(Debug)]
/// struct Careful;
///
/// impl CommHook for Careful {
///     fn name(&self) -> &str {
///         "f64"
///     }
///
///     fn reduce(&self, bucket: &mut Bucket<'_>, group: &ProcessGroup) -> Result<()> {
///         let mut wide: Vec<f64> = bucket.values().iter().map(|x| f64::from(*x)).collect();
///         group.all_reduce(&mut wide, ReduceOp::Sum)?;
///         bucket.values_mut().iter_mut().zip(wide).for_each(|(to, from)| *to = from as f32);
///         Ok(())
///     }
/// }
/// ```
pub trait CommHook: Send + Sync + fmt::Debug {
    /// Name of the hook in a run's configuration.
    fn name(&self) -> &str;

    /// Replaces the bucket by the sum over all ranks, or an approximation of it.
    ///
    /// Values are already weighted, so that the sum is the mean over the global batch. All ranks must return the
    /// same bits and make the same collective calls on `group`.
    ///
    /// # Errors
    /// Those of the group. An error on one rank ends the job on all ranks.
    fn reduce(&self, bucket: &mut Bucket<'_>, group: &ProcessGroup) -> Result<()>;
}

/// A bucket in reduction.
pub struct Bucket<'a> {
    index: usize,
    plan: &'a BucketPlan,
    values: &'a mut [f32],
}

/// One parameter's gradient in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketParameter<'a> {
    /// Field names from the root, joined by dots.
    pub path: &'a str,
    /// Shape of the parameter.
    pub shape: &'a [usize],
    /// Range of its elements in [`Bucket::values`].
    pub range: Range<usize>,
}

impl<'a> Bucket<'a> {
    /// Index of this bucket, equal on every rank and in every step.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Number of buckets in a step.
    pub fn count(&self) -> usize {
        self.plan.buckets()
    }

    /// Concatenated gradients.
    pub fn values(&self) -> &[f32] {
        self.values
    }

    /// Concatenated gradients, mutable.
    pub fn values_mut(&mut self) -> &mut [f32] {
        self.values
    }

    /// Parameters in this bucket, in the order of their ranges.
    pub fn parameters(&self) -> impl Iterator<Item = BucketParameter<'a>> + use<'a> {
        let plan = self.plan;
        plan.members[self.index].iter().map(|slot| {
            let slot = &plan.slots[*slot];
            BucketParameter { path: &slot.path, shape: &slot.shape, range: slot.range.clone() }
        })
    }
}

impl fmt::Debug for Bucket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bucket({} of {}, {} values)", self.index, self.count(), self.values.len())
    }
}

/// Reduces buckets in the background.
#[derive(Clone, Debug)]
pub(super) struct BucketSender {
    pub group: ProcessGroup,
    pub hook: Option<Arc<dyn CommHook>>,
}

impl BucketSender {
    /// Starts the reduction of a bucket, which may be followed by totals.
    ///
    /// If only another rank updates the bucket's parameters, only the totals are returned.
    ///
    /// # Errors
    /// If the group fails.
    pub fn send(&self, plan: &Arc<BucketPlan>, index: usize, mut buffer: Vec<f32>) -> Result<Work<Vec<f32>>> {
        let (plan, hook) = (plan.clone(), self.hook.clone());
        self.group.start(move |group| {
            let length = plan.length(index);
            let (values, totals) = buffer.split_at_mut(length);
            match (hook, plan.owner(index)) {
                (None, None) => return group.all_reduce(&mut buffer, ReduceOp::Sum).map(|()| buffer),
                (None, Some(owner)) => group.reduce(values, ReduceOp::Sum, owner)?,
                (Some(hook), _) => {
                    hook.reduce(&mut Bucket { index, plan: &plan, values }, group).inspect_err(|error| {
                        // Ends the wait of the other ranks at once.
                        if group.failure().is_none() {
                            group.abort(format!("communication hook {}: {error}", hook.name()));
                        }
                    })?
                }
            }
            if !totals.is_empty() {
                group.all_reduce(totals, ReduceOp::Sum)?;
            }
            if plan.is_foreign(index) {
                buffer = buffer.split_off(length);
            }
            Ok(buffer)
        })
    }
}

/// Reduces gradients in 16 bits, as PyTorch's `bf16_compress_hook` and `fp16_compress_hook`.
///
/// There is no error feedback. bf16 has f32's range with 8 bits of precision. fp16 has 11 bits from 6e-8 to 65504;
/// larger values become infinite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HalfPrecision {
    /// f32's range, 8 bits of precision.
    Bf16,
    /// 11 bits of precision, from 6e-8 to 65504.
    Fp16,
}

impl CommHook for HalfPrecision {
    fn name(&self) -> &str {
        match self {
            HalfPrecision::Bf16 => "bf16",
            HalfPrecision::Fp16 => "fp16",
        }
    }

    fn reduce(&self, bucket: &mut Bucket<'_>, group: &ProcessGroup) -> Result<()> {
        match self {
            HalfPrecision::Bf16 => through(bucket.values_mut(), group, bf16::from_f32, bf16::to_f32),
            HalfPrecision::Fp16 => through(bucket.values_mut(), group, f16::from_f32, f16::to_f32),
        }
    }
}

fn through<T: Element>(
    values: &mut [f32],
    group: &ProcessGroup,
    narrow: fn(f32) -> T,
    widen: fn(T) -> f32,
) -> Result<()> {
    let mut narrowed: Vec<T> = values.iter().map(|value| narrow(*value)).collect();
    group.all_reduce(&mut narrowed, ReduceOp::Sum)?;
    values.iter_mut().zip(narrowed).for_each(|(to, from)| *to = widen(from));
    Ok(())
}
