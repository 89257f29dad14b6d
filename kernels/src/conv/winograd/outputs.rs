//! Inverse transform of the products, and storing or pooling of the outputs.

use super::{POINTS, Tiles, products::SPAN};
use crate::{
    conv::shape::Shape,
    pool::NONE,
    simd::{copy, load, store},
};
use pulp::Simd;
use std::mem::MaybeUninit;

/// Transforms `span` of one filter's `products`, `[points, SPAN]`, to `outputs`, `[2 × 2, room]`.
#[inline(always)]
pub fn sums<S: Simd>(simd: S, products: &[f32], room: usize, span: usize, outputs: &mut [f32]) {
    assert!(span <= SPAN && products.len() >= POINTS * SPAN && outputs.len() >= 3 * room + span);
    for at in (0..span).step_by(S::F32_LANES) {
        let mut lines = [[simd.splat_f32s(0.0); 2]; 4];
        // SAFETY: each point has `span` products, and each output has room for them.
        unsafe {
            for line in 0..4 {
                let from = products.as_ptr().add(line * 4 * SPAN + at);
                let (m0, m1) = (load::<S>(from), load::<S>(from.add(SPAN)));
                let (m2, m3) = (load::<S>(from.add(2 * SPAN)), load::<S>(from.add(3 * SPAN)));
                lines[line] = pair::<S>(simd, [m0, m1, m2, m3]);
            }
            for column in 0..2 {
                let line = [lines[0][column], lines[1][column], lines[2][column], lines[3][column]];
                let [above, below] = pair::<S>(simd, line);
                let to = outputs.as_mut_ptr().add(column * room + at);
                store::<S>(to, above);
                store::<S>(to.add(2 * room), below);
            }
        }
    }
}

/// Computes two outputs from four products.
#[inline(always)]
fn pair<S: Simd>(simd: S, [m0, m1, m2, m3]: [S::f32s; 4]) -> [S::f32s; 2] {
    [simd.add_f32s(simd.add_f32s(m0, m1), m2), simd.add_f32s(simd.sub_f32s(m1, m2), m3)]
}

/// Copies a filter's outputs, `[2 × 2, room]`, to their places in its plane.
///
/// `lines` has room for the even and the odd rows.
#[inline(always)]
pub fn place(
    shape: &Shape,
    tiles: &Tiles,
    outputs: &[f32],
    lines: &mut [Vec<[f32; 2]>; 2],
    plane: &mut [MaybeUninit<f32>],
) {
    for (line, outputs) in lines.iter_mut().zip(outputs.chunks_exact(2 * tiles.room)) {
        let (left, right) = outputs.split_at(tiles.room);
        let (line, right) = (&mut line[..tiles.room], &right[..tiles.room]);
        for at in 0..tiles.room {
            line[at] = [left[at], right[at]];
        }
    }
    let [height, width] = shape.output;
    for row in 0..height {
        let from = &lines[row % 2][row / 2 * tiles.columns..][..tiles.columns].as_flattened()[..width];
        let to = &mut plane[row * width..][..width];
        // SAFETY: both have this length.
        unsafe { copy(from.as_ptr(), to.as_mut_ptr().cast(), width) };
    }
}

/// Pools a filter's outputs in each whole tile, with ReLU; see [`crate::pool`].
#[inline(always)]
pub fn pool<S: Simd>(
    simd: S,
    shape: &Shape,
    tiles: &Tiles,
    outputs: &[f32],
    (best, which): (&mut [f32], &mut [u32]),
    values: &mut [MaybeUninit<f32>],
    taken: &mut [MaybeUninit<u8>],
) {
    let (best, which) = (&mut best[..tiles.room], &mut which[..tiles.room]);
    assert!(outputs.len() >= 4 * tiles.room);
    for at in (0..tiles.room).step_by(S::F32_LANES) {
        let (mut most, mut from) = (simd.splat_f32s(0.0), simd.splat_u32s(u32::from(NONE)));
        for corner in 0..4 {
            // SAFETY: each corner has room for all tiles.
            let value = unsafe { load::<S>(outputs.as_ptr().add(corner * tiles.room + at)) };
            // NaN is propagated.
            let number = simd.equal_f32s(value, value);
            let better = simd.or_m32s(simd.less_than_f32s(most, value), simd.not_m32s(number));
            most = simd.select_f32s(better, value, most);
            from = simd.select_u32s(better, simd.splat_u32s(corner as u32), from);
        }
        // SAFETY: as above.
        unsafe {
            store::<S>(best.as_mut_ptr().add(at), most);
            which.as_mut_ptr().add(at).cast::<S::u32s>().write_unaligned(from);
        }
    }
    // Without incomplete tiles, all rows are contiguous.
    let [height, width] = shape.pooled();
    let [rows, columns] = if width == tiles.columns { [1, height * width] } else { [height, width] };
    for row in 0..rows {
        let from = row * tiles.columns..row * tiles.columns + columns;
        values[row * columns..][..columns].write_copy_of_slice(&best[from.clone()]);
        for (taken, &which) in taken[row * columns..][..columns].iter_mut().zip(&which[from]) {
            taken.write(which as u8);
        }
    }
}
