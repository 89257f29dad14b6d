//! Element types and reductions of collectives.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// Type of the elements in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DType {
    /// Single precision.
    F32,
    /// Double precision.
    F64,
    /// IEEE half precision: 11 bits of precision, at most 65504.
    F16,
    /// The upper half of an f32: its range, 8 bits of precision.
    BF16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 8-bit integer.
    U8,
}

impl DType {
    /// Size of one element in bytes.
    pub const fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::U8 => 1,
        }
    }
}

/// A reduction over the values of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReduceOp {
    /// Sum; half types are summed in f32.
    Sum,
    /// Sum divided by the world size; integer division rounds towards zero.
    Mean,
    /// Minimum.
    Min,
    /// Maximum.
    Max,
    /// Product.
    Product,
}

/// An element type: [`f32`], [`f64`], [`struct@f16`], [`bf16`], [`i32`], [`i64`] or [`u8`].
pub trait Element: bytemuck::Pod + Send + Sync + std::fmt::Debug {
    /// The corresponding [`DType`].
    const DTYPE: DType;
}

macro_rules! element {
    ($($t:ty => $d:ident),*) => { $(impl Element for $t { const DTYPE: DType = DType::$d; })* };
}
element!(f32 => F32, f64 => F64, f16 => F16, bf16 => BF16, i32 => I32, i64 => I64, u8 => U8);
