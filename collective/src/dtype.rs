//! The element types and reductions that collectives understand.

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
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// A byte.
    U8,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::U8 => 1,
        }
    }
}

/// How the values of all ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReduceOp {
    /// All added up; half types add up in f32.
    Sum,
    /// The sum divided by the world size; on integers the division rounds towards zero.
    Mean,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// All multiplied.
    Product,
}

/// A plain number that can travel: [`f32`], [`f64`], [`struct@f16`], [`bf16`], [`i32`], [`i64`], [`u8`].
pub trait Element: bytemuck::Pod + Send + Sync + std::fmt::Debug {
    /// Its type as collectives name it.
    const DTYPE: DType;
}

macro_rules! element {
    ($($t:ty => $d:ident),*) => { $(impl Element for $t { const DTYPE: DType = DType::$d; })* };
}
element!(f32 => F32, f64 => F64, f16 => F16, bf16 => BF16, i32 => I32, i64 => I64, u8 => U8);
