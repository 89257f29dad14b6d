//! Passes over images with few positions: in rows of all channels, with each channel's constants at all of its positions.

use super::{Affine, Centred, Relu};
use crate::{
    activation::{self, relu_gradient},
    parallel::{self, Room},
    simd::multiversion,
};
use std::ops::Range;

/// Whether rows are faster than planes, which have one vector or less.
pub fn are_faster(positions: usize) -> bool {
    positions < 8
}

/// Values per part of the work, and most images of it, whose values are added up in f32.
const PART: usize = 1 << 14;
const IMAGES: usize = 32;

/// Images per part of the work.
fn at_once(width: usize) -> usize {
    (PART / width.max(1)).clamp(1, IMAGES)
}

/// `of(channel)` at each position of an image.
fn row(shape: [usize; 3], of: impl Fn(usize) -> f32) -> Vec<f32> {
    let [_, channels, positions] = shape;
    (0..channels * positions).map(|at| of(at / positions)).collect()
}

/// The channels' centres at each position of an image.
fn centres(of: Centred, shape: [usize; 3]) -> Vec<f32> {
    row(shape, |channel| of.centres.map_or(0.0, |centres| centres[channel]))
}

/// Factors and constants of the first input.
fn maps(lines: &[Affine], shape: [usize; 3]) -> [Vec<f32>; 2] {
    [row(shape, |channel| lines[channel].factors[0]), row(shape, |channel| lines[channel].constant)]
}

/// Computes [`super::sums`].
pub fn sums(a: Centred, b: Centred, outputs: Option<&[Affine]>, shape: [usize; 3]) -> Vec<[f64; 2]> {
    let [batch, channels, positions] = shape;
    let width = channels * positions;
    let at_once = at_once(width);
    let [a_centres, b_centres] = [a, b].map(|of| centres(of, shape));
    let outputs = outputs.map(|lines| maps(lines, shape));
    let part = |(): &mut (), part: usize| {
        let range = part * at_once * width..batch.min((part + 1) * at_once) * width;
        let mut sums = [vec![0.0; width], vec![0.0; width]];
        let values = [&a.values[range.clone()], &b.values[range]];
        let outputs = outputs.as_ref().map(|maps| maps.each_ref().map(|map| &map[..]));
        add_rows(values, [&a_centres, &b_centres], outputs, &mut sums);
        sums
    };
    let mut totals = vec![[0.0; 2]; channels];
    for sums in parallel::each(batch.div_ceil(at_once), || (), part) {
        for at in 0..width {
            for of in 0..2 {
                totals[at / positions][of] += f64::from(sums[of][at]);
            }
        }
    }
    totals
}

multiversion!(
    fn add_rows(
        values: [&[f32]; 2],
        centres: [&[f32]; 2],
        outputs: Option<[&[f32]; 2]>,
        sums: &mut [Vec<f32>; 2],
    ) {
        let ([a, b], [a_centres, b_centres], [first, second]) = (values, centres, sums);
        let width = first.len().max(1);
        for (a, b) in a.chunks_exact(width).zip(b.chunks_exact(width)) {
            let centred = b.iter().zip(b_centres).zip(a);
            let sums = first.iter_mut().zip(&mut *second);
            match outputs {
                None => {
                    for ((((b, b_centre), a), a_centre), (first, second)) in centred.zip(a_centres).zip(sums)
                    {
                        let (a, b) = (a - a_centre, b - b_centre);
                        *first += a;
                        *second += a * b;
                    }
                }
                Some([factors, constants]) => {
                    let maps = factors.iter().zip(constants);
                    for ((((b, b_centre), a), (factor, constant)), (first, second)) in
                        centred.zip(maps).zip(sums)
                    {
                        let b = b - b_centre;
                        let a = relu_gradient(b * factor + constant, *a);
                        *first += a;
                        *second += a * b;
                    }
                }
            }
        }
    }
);

/// Computes [`super::apply`].
pub fn apply(lines: &[Affine], a: Centred, b: Option<Centred>, relu: Relu, shape: [usize; 3]) -> Vec<f32> {
    let [batch, channels, positions] = shape;
    let width = channels * positions;
    let outputs = match relu {
        Relu::Before(outputs) => outputs,
        Relu::None | Relu::After => lines,
    };
    let row = Row {
        map: maps(lines, shape),
        second: row(shape, |channel| lines[channel].factors[1]),
        output: maps(outputs, shape),
        centres: [centres(a, shape), b.map_or_else(Vec::new, |b| centres(b, shape))],
    };
    let one = |(): &mut (), images: Range<usize>, to: Room| {
        let range = images.start * width..images.end * width;
        apply_to_rows(&row, &a.values[range.clone()], b.map(|b| &b.values[range]), relu, to);
    };
    // SAFETY: every value of every row is written.
    unsafe { parallel::build([batch, at_once(width)], width, || (), one) }
}

/// Constants of each value of an image.
struct Row {
    map: [Vec<f32>; 2],
    /// Factors of the second input.
    second: Vec<f32>,
    /// The map before a ReLU.
    output: [Vec<f32>; 2],
    centres: [Vec<f32>; 2],
}

multiversion!(
    fn apply_to_rows(row: &Row, a: &[f32], b: Option<&[f32]>, relu: Relu<'_>, to: Room<'_>) {
        let Row { map: [factors, constants], second, output: [slopes, offsets], centres } = row;
        let width = factors.len().max(1);
        for (image, to) in to.chunks_exact_mut(width).enumerate() {
            let a = &a[image * width..][..width];
            let maps = factors.iter().zip(constants);
            let centred = a.iter().zip(&centres[0]).zip(maps).zip(to);
            let Some(b) = b else {
                for (((a, centre), (factor, constant)), to) in centred {
                    let output = (a - centre) * factor + constant;
                    to.write(if matches!(relu, Relu::After) { activation::relu(output) } else { output });
                }
                continue;
            };
            let b = b[image * width..][..width].iter().zip(&centres[1]).zip(second);
            if let Relu::Before(_) = relu {
                let outputs = slopes.iter().zip(offsets);
                for (((((a, _), (factor, constant)), to), ((b, centre), second)), (slope, offset)) in
                    centred.zip(b).zip(outputs)
                {
                    let b = b - centre;
                    to.write(relu_gradient(b * slope + offset, *a) * factor + b * second + constant);
                }
            } else {
                for ((((a, centre), (factor, constant)), to), ((b, b_centre), second)) in centred.zip(b) {
                    to.write((a - centre) * factor + (b - b_centre) * second + constant);
                }
            }
        }
    }
);
