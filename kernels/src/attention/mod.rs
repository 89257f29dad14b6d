//! Multi-head attention for short sequences (Vaswani et al. 2017, arXiv 1706.03762).

mod head;
#[cfg(all(test, feature = "burn"))]
mod tests;

use crate::{
    dropout::Dropout,
    parallel::{self, Room, values},
    product::Matrix,
};
use head::{Head, Workspace};
use std::{ops::Range, sync::Arc};

/// Sizes and options of attention.
///
/// The inputs are queries, `[batch, queries, width]`, keys and values, `[batch, keys, width]`. One input, the output of a
/// linear layer, `[batch × time, 3 × width]`, means causal self-attention, in which a position sees itself and earlier ones;
/// `queries` and `keys` are then both the time.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Sequences.
    pub batch: usize,
    /// Queries of a sequence.
    pub queries: usize,
    /// Keys and values of a sequence.
    pub keys: usize,
    /// Attention heads.
    pub heads: usize,
    /// Values of a position, a multiple of `heads`.
    pub width: usize,
    /// Scores that are replaced.
    pub mask: Option<Mask>,
    /// Dropout of the attention weights, in rows of one head of one sequence.
    pub dropout: Option<Dropout>,
}

/// Replacement of scores before the softmax.
#[derive(Clone, Debug)]
pub struct Mask {
    /// Whether a score is replaced, `[batch, queries, keys]`, or `[batch, 1, keys]` for all queries.
    pub masked: Arc<[bool]>,
    /// The value of these scores.
    pub fill: f32,
}

/// Result of [`Attention::forward`].
#[derive(Clone, Debug)]
pub struct Forward {
    /// `[batch, queries, width]`.
    pub context: Vec<f32>,
    /// Attention weights after dropout, `[batch, heads, queries, keys]`.
    pub weights: Vec<f32>,
    /// Attention weights before dropout, negative where they are dropped; empty without dropout.
    pub signed: Vec<f32>,
}

/// The inputs of [`Attention`].
struct Inputs<'a> {
    of: &'a Attention,
    slices: &'a [&'a [f32]],
}

impl Inputs<'_> {
    fn is_packed(&self) -> bool {
        self.slices.len() == 1
    }

    /// Lengths of a sequence in each slice.
    fn lens(&self) -> [usize; 3] {
        let Attention { queries, keys, width, .. } = *self.of;
        if self.is_packed() {
            [queries * 3 * width, 0, 0]
        } else {
            [queries, keys, keys].map(|rows| rows * width)
        }
    }

    /// Slice that contains queries, keys or values, their start in a row of it and length of the row.
    fn part(&self, part: usize) -> [usize; 3] {
        let width = self.of.width;
        if self.is_packed() { [0, part * width, 3 * width] } else { [part, 0, width] }
    }

    /// Queries, keys and values of a head.
    fn views(&self, sequence: usize, head: usize) -> [Matrix<'_>; 3] {
        let Attention { queries, keys, .. } = *self.of;
        let lens = self.lens();
        [(0, queries), (1, keys), (2, keys)].map(|(part, rows)| {
            let [slice, column, stride] = self.part(part);
            let values = &self.slices[slice][sequence * lens[slice]..];
            let shape = [rows, self.of.width / self.of.heads];
            Matrix {
                values: &values[(column + head * shape[1]).min(values.len())..],
                shape,
                strides: [stride, 1],
            }
        })
    }

    /// A head of a sequence.
    fn head(&self, sequence: usize, head: usize) -> Head<'_> {
        let Attention { batch, queries, keys, heads, ref mask, dropout, .. } = *self.of;
        Head {
            queries,
            keys,
            causal: self.is_packed(),
            scale: ((self.of.width / self.of.heads) as f32).powf(-0.5),
            mask: mask.as_ref().map(|Mask { masked, fill }| {
                let len = masked.len() / batch;
                (&masked[sequence * len..][..len], *fill)
            }),
            dropout: dropout.map(|dropout| (dropout, sequence * heads + head)),
        }
    }

    /// Numbers of values of the context and of the weights.
    fn check(&self) -> [usize; 2] {
        let Attention { batch, queries, keys, heads, width, ref mask, .. } = *self.of;
        assert!(heads > 0 && width.is_multiple_of(heads), "width is a multiple of heads");
        let len = |shape: &[usize]| values(shape).expect("values that fit in memory");
        let lens = [queries, keys, keys].map(|rows| len(&[batch, rows, width]));
        if self.is_packed() {
            assert_eq!(queries, keys, "self-attention");
            assert_eq!(self.slices[0].len(), len(&[lens[0], 3]), "[batch × time, 3 × width]");
        } else {
            assert!(self.slices.iter().map(|slice| slice.len()).eq(lens), "[batch, rows, width]");
        }
        if let Some(Mask { masked, .. }) = mask {
            let rows = [1, queries].map(|rows| batch * rows * keys);
            assert!(rows.contains(&masked.len()), "mask: [batch, queries or 1, keys]");
        }
        [lens[0], len(&[batch, heads, queries, keys])]
    }
}

impl Attention {
    /// Context and attention weights.
    ///
    /// Scores have the factor 1 / √(head width).
    ///
    /// # Panics
    /// If the inputs do not have their shapes, or the result does not fit in memory.
    pub fn forward(&self, inputs: &[&[f32]]) -> Forward {
        let inputs = Inputs { of: self, slices: inputs };
        inputs.check();
        let Attention { batch, queries, keys, heads, width, dropout, .. } = *self;
        let (square, head_width) = (queries * keys, width / heads);
        let signed_square = if dropout.is_some() { square } else { 0 };
        let lens = [queries * width, heads * square, heads * signed_square];
        let work = |workspace: &mut Workspace,
                    one: Range<usize>,
                    context: Room,
                    weights: Room,
                    signed: Room| {
            let sequence = one.start;
            for head in 0..heads {
                let context = &mut context[(head * head_width).min(lens[0])..];
                let weights = &mut weights[head * square..][..square];
                let signed = &mut signed[head * signed_square..][..signed_square];
                let of_head = inputs.head(sequence, head);
                of_head.forward(inputs.views(sequence, head), (context, width), weights, signed, workspace);
            }
        };
        // SAFETY: the heads write all values.
        let (context, weights, signed) =
            unsafe { parallel::build_three([batch, 1], lens, Workspace::default, work) };
        Forward { context, weights, signed }
    }

    /// Gradients of the inputs, from those of the context and, optionally, of the weights.
    ///
    /// With one input, the others are empty. `weights` are those of [`forward`](Self::forward), with dropout
    /// [`Forward::signed`].
    ///
    /// # Panics
    /// If the slices do not have the lengths of [`forward`](Self::forward).
    pub fn backward(
        &self,
        inputs: &[&[f32]],
        weights: &[f32],
        (gradient, for_weights): (&[f32], Option<&[f32]>),
    ) -> [Vec<f32>; 3] {
        let inputs = Inputs { of: self, slices: inputs };
        let lens = inputs.check();
        let lengths = [gradient.len(), weights.len(), for_weights.map_or(lens[1], <[f32]>::len)];
        assert_eq!(lengths, [lens[0], lens[1], lens[1]], "lengths of forward");
        let Attention { batch, queries, keys, heads, width, .. } = *self;
        let (square, head_width) = (queries * keys, width / heads);
        let work = |workspace: &mut Workspace, one: Range<usize>, a: Room, b: Room, c: Room| {
            let (sequence, mut slices) = (one.start, [a, b, c]);
            for head in 0..heads {
                let at = (sequence * heads + head) * square;
                let for_weights = for_weights.map(|gradient| &gradient[at..][..square]);
                let values =
                    &gradient[(sequence * queries * width + head * head_width).min(gradient.len())..];
                let gradient = Matrix { values, shape: [queries, head_width], strides: [width, 1] };
                let of_head = inputs.head(sequence, head);
                let (views, weights) = (inputs.views(sequence, head), &weights[at..][..square]);
                of_head.backward(
                    views,
                    weights,
                    (gradient, for_weights),
                    workspace,
                    &mut |part, row, write| {
                        let [slice, column, stride] = inputs.part(part);
                        write(&mut slices[slice][row * stride + column + head * head_width..], stride);
                    },
                );
            }
        };
        // SAFETY: the heads write all values.
        let (a, b, c) = unsafe { parallel::build_three([batch, 1], inputs.lens(), Workspace::default, work) };
        [a, b, c]
    }
}
