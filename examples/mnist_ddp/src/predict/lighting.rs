//! Removal of uneven lighting from photographs.

use super::picture::Plane;

/// Number of terms of the surface that is fitted to the paper: 1, x, y, x², xy, y².
const TERMS: usize = 6;
/// Number of fits; each excludes what the previous one classified as ink.
const ROUNDS: usize = 6;
/// Maximum side of the reduced image to which the surface is fitted.
const SIDE: usize = 64;

/// Subtracts the quadratic surface that best fits the paper from bright ink on dark paper.
pub(super) fn evened(plane: &Plane) -> Plane {
    let small = plane.scaled((SIDE as f32 / plane.width.max(plane.height()) as f32).min(1.0));
    let mut is_paper = vec![true; small.values.len()];
    let mut surface = [0.0; TERMS];
    for _ in 0..ROUNDS {
        let Some(fitted) = fit(&small, &is_paper) else { break };
        surface = fitted;
        let apart: Vec<f32> =
            places(&small).zip(&small.values).map(|(at, v)| v - height(&surface, at)).collect();
        let papers =
            || apart.iter().zip(&is_paper).filter(|(_, is_paper)| **is_paper).map(|(apart, _)| apart);
        let count = papers().count().max(1) as f32;
        let spread = (papers().map(|apart| apart * apart).sum::<f32>() / count).sqrt();
        // Ink is brighter than the paper. A uniform image has only rounding errors.
        is_paper = apart.iter().map(|apart| *apart < (1.5 * spread).max(0.01)).collect();
    }
    let values = places(plane).zip(&plane.values).map(|(at, value)| value - height(&surface, at));
    Plane::new(plane.width, values.collect())
}

/// Coordinates of each value, from −1 to 1.
fn places(plane: &Plane) -> impl Iterator<Item = [f32; 2]> {
    let (width, height) = (plane.width, plane.height());
    let middle = |at: usize, length: usize| (2 * at + 1) as f32 / length as f32 - 1.0;
    (0..width * height).map(move |at| [middle(at % width, width), middle(at / width, height)])
}

fn terms([x, y]: [f32; 2]) -> [f32; TERMS] {
    [1.0, x, y, x * x, x * y, y * y]
}

fn height(surface: &[f64; TERMS], at: [f32; 2]) -> f32 {
    terms(at).iter().zip(surface).map(|(term, factor)| f64::from(*term) * factor).sum::<f64>() as f32
}

/// Least-squares fit; `None` if the paper does not determine it.
fn fit(plane: &Plane, is_paper: &[bool]) -> Option<[f64; TERMS]> {
    // The normal equations, with the right side as the last column.
    let mut rows = [[0.0_f64; TERMS + 1]; TERMS];
    for ((at, value), _) in places(plane).zip(&plane.values).zip(is_paper).filter(|(_, paper)| **paper) {
        let terms = terms(at).map(f64::from);
        for (row, left) in rows.iter_mut().zip(terms) {
            row.iter_mut().zip(terms).for_each(|(cell, right)| *cell += left * right);
            row[TERMS] += left * f64::from(*value);
        }
    }
    // Gauss–Jordan elimination; the matrix is symmetric and positive semidefinite and needs no other pivots.
    for pivot in 0..TERMS {
        let scale = rows[pivot][pivot];
        if scale < 1e-6 {
            return None;
        }
        rows[pivot].iter_mut().for_each(|cell| *cell /= scale);
        let pivoted = rows[pivot];
        for (_, row) in rows.iter_mut().enumerate().filter(|(at, _)| *at != pivot) {
            let factor = row[pivot];
            row.iter_mut().zip(pivoted).for_each(|(cell, other)| *cell -= factor * other);
        }
    }
    Some(rows.map(|row| row[TERMS]))
}
