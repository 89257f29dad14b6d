//! Conversion between elements and partials in memory.

use super::{
    BLOCK, finish_as,
    kernel::{Folds, Partial},
};
use crate::ReduceOp;

fn load_partial<P: Partial>(partial: &[u8], acc: &mut [P]) {
    for (acc, bytes) in acc.iter_mut().zip(bytemuck::cast_slice::<u8, P::Bytes>(partial)) {
        *acc = P::from_bytes(*bytes);
    }
}

fn store_partial<P: Partial>(acc: &[P], partial: &mut [u8]) {
    for (acc, bytes) in acc.iter().zip(bytemuck::cast_slice_mut::<u8, P::Bytes>(partial)) {
        *bytes = acc.to_bytes();
    }
}

/// Blocks of a buffer of elements and of its partial, both as ranges of bytes.
fn blocks<T, P>(
    elements: usize,
    partial: usize,
) -> impl Iterator<Item = (std::ops::Range<usize>, std::ops::Range<usize>)> {
    let count = elements / size_of::<T>();
    assert!(
        count * size_of::<T>() == elements && count * size_of::<P>() == partial,
        "{elements} bytes of elements do not belong to {partial} bytes of partials"
    );
    (0..count).step_by(BLOCK).map(move |from| {
        let to = (from + BLOCK).min(count);
        (from * size_of::<T>()..to * size_of::<T>(), from * size_of::<P>()..to * size_of::<P>())
    })
}

pub(super) fn widen_as<T: Folds<P>, P: Partial>(src: &[u8], partial: &mut [u8]) {
    let mut acc = [P::default(); BLOCK];
    for (element, wide) in blocks::<T, P>(src.len(), partial.len()) {
        let acc = &mut acc[..element.len() / size_of::<T>()];
        T::load(&src[element], acc);
        store_partial(acc, &mut partial[wide]);
    }
}

pub(super) fn narrow_as<T: Folds<P>, P: Partial>(op: ReduceOp, world: usize, partial: &[u8], out: &mut [u8]) {
    let mut acc = [P::default(); BLOCK];
    for (element, wide) in blocks::<T, P>(out.len(), partial.len()) {
        let acc = &mut acc[..element.len() / size_of::<T>()];
        load_partial(&partial[wide], acc);
        finish_as::<T, P>(op, world, acc, &mut out[element]);
    }
}
