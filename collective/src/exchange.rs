//! One collective on a tensor: its kind, its gradient, and its execution through host memory.

use crate::{Error, ProcessGroup, ReduceOp, Result};
use burn::tensor::{DType, Shape, TensorData, bf16, f16};

/// The collective to run. Rows are counted along the first dimension, one entry for each rank.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    AllReduce(ReduceOp),
    AllGather(Vec<usize>),
    /// Reduce-scatter of the sum.
    ReduceScatter(Vec<usize>),
    Broadcast(usize),
    /// Sum on the given rank; zeros on all others.
    Reduce(usize),
}

impl Kind {
    /// The collective on the gradient; `None` if the result is a constant to autodiff.
    pub(crate) fn backward(&self) -> Option<Kind> {
        match self {
            Kind::AllReduce(op @ (ReduceOp::Sum | ReduceOp::Mean)) => Some(Kind::AllReduce(*op)),
            Kind::AllReduce(ReduceOp::Min | ReduceOp::Max | ReduceOp::Product) => None,
            Kind::AllGather(rows) => Some(Kind::ReduceScatter(rows.clone())),
            Kind::ReduceScatter(rows) => Some(Kind::AllGather(rows.clone())),
            Kind::Broadcast(root) => Some(Kind::Reduce(*root)),
            Kind::Reduce(root) => Some(Kind::Broadcast(*root)),
        }
    }

    pub(crate) fn output_shape(&self, mut shape: Shape, rank: usize) -> Shape {
        match self {
            Kind::AllGather(rows) => shape[0] = rows.iter().sum(),
            Kind::ReduceScatter(rows) => shape[0] = rows[rank],
            Kind::AllReduce(_) | Kind::Broadcast(_) | Kind::Reduce(_) => {}
        }
        shape
    }
}

/// One collective on a tensor, as an argument of a Burn operation.
#[derive(Clone, Debug)]
pub struct Exchange {
    pub(crate) group: ProcessGroup,
    pub(crate) kind: Kind,
    /// Whether it belongs to a training step. On a device, the ranks' calls are then compared in the background.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only read for CUDA devices"))]
    pub(crate) of_step: bool,
}

impl Exchange {
    pub(crate) fn new(group: &ProcessGroup, kind: Kind) -> Self {
        Exchange { group: group.clone(), kind, of_step: false }
    }

    /// A collective of a training step.
    pub(crate) fn of_step(group: &ProcessGroup, kind: Kind) -> Self {
        Exchange { of_step: true, ..Self::new(group, kind) }
    }

    fn apply<T: crate::Element + burn::tensor::Element>(&self, data: &TensorData) -> Result<Vec<T>> {
        let unreadable = |e| Error::Invalid(format!("a tensor's own data cannot be read: {e:?}"));
        let mut values = data.as_slice::<T>().map_err(unreadable)?.to_vec();
        let group = &self.group;
        match &self.kind {
            Kind::AllReduce(op) => group.all_reduce(&mut values, *op)?,
            Kind::AllGather(_) => values = group.all_gather(&values)?.concat(),
            Kind::ReduceScatter(_) => values = group.reduce_scatter(&mut values, ReduceOp::Sum)?.to_vec(),
            Kind::Broadcast(root) => group.broadcast(&mut values, *root)?,
            Kind::Reduce(root) => {
                group.all_reduce(&mut values, ReduceOp::Sum)?;
                if group.rank() != *root {
                    values.fill(T::zeroed());
                }
            }
        }
        Ok(values)
    }

    pub(crate) fn on_host(&self, data: TensorData) -> TensorData {
        let shape = self.kind.output_shape(data.shape().clone(), self.group.rank());
        let dtype = data.dtype();
        let result = match dtype {
            DType::F32 | DType::Flex32 => self.apply::<f32>(&data).map(|v| TensorData::new(v, shape.clone())),
            DType::F64 => self.apply::<f64>(&data).map(|v| TensorData::new(v, shape.clone())),
            DType::F16 => self.apply::<f16>(&data).map(|v| TensorData::new(v, shape.clone())),
            DType::BF16 => self.apply::<bf16>(&data).map(|v| TensorData::new(v, shape.clone())),
            other => {
                Err(Error::Invalid(format!("collectives on tensors support float types, not {other:?}")))
            }
        };
        result.unwrap_or_else(|error| {
            self.group.abort(error.to_string());
            TensorData::full_dtype(shape, 0.0, dtype)
        })
    }
}
