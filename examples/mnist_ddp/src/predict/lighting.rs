//! Correction of uneven lighting in photographs.

use super::sample::Plane;

/// Number of terms of the background surface: 1, x, y, x², xy, y².
const TERMS: usize = 6;
/// Number of fits; each one excludes the pixels that the previous one classified as ink.
const ROUNDS: usize = 6;
/// Maximum side of the downscaled picture to which the surface is fitted.
const SIDE: usize = 64;

/// Subtracts a quadratic surface fitted to the paper. Ink is bright on dark paper.
pub(super) fn flattened(plane: &Plane) -> Plane {
    let small = plane.scaled((SIDE as f32 / plane.width().max(plane.height()) as f32).min(1.0));
    let mut is_paper = vec![true; small.values().len()];
    let mut surface = [0.0; TERMS];
    for _ in 0..ROUNDS {
        let Some(fitted) = fit(&small, &is_paper) else { break };
        surface = fitted;
        let apart: Vec<f32> =
            places(&small).zip(small.values()).map(|(at, v)| v - height(&surface, at)).collect();
        let papers =
            || apart.iter().zip(&is_paper).filter(|(_, is_paper)| **is_paper).map(|(apart, _)| apart);
        let count = papers().count().max(1) as f32;
        let spread = (papers().map(|apart| apart * apart).sum::<f32>() / count).sqrt();
        // Ink is brighter than the paper. The minimum tolerates rounding errors of a flat picture.
        is_paper = apart.iter().map(|apart| *apart < (1.5 * spread).max(0.01)).collect();
    }
    let values = places(plane).zip(plane.values()).map(|(at, value)| value - height(&surface, at));
    Plane::new(plane.width(), values.collect())
}

/// Returns the coordinates of each pixel, from −1 to 1.
fn places(plane: &Plane) -> impl Iterator<Item = [f32; 2]> {
    let (width, height) = (plane.width(), plane.height());
    let middle = |at: usize, length: usize| (2 * at + 1) as f32 / length as f32 - 1.0;
    (0..width * height).map(move |at| [middle(at % width, width), middle(at / width, height)])
}

fn terms([x, y]: [f32; 2]) -> [f32; TERMS] {
    [1.0, x, y, x * x, x * y, y * y]
}

fn height(surface: &[f64; TERMS], at: [f32; 2]) -> f32 {
    terms(at).iter().zip(surface).map(|(term, factor)| f64::from(*term) * factor).sum::<f64>() as f32
}

/// Fits the surface by least squares; returns `None` if it is underdetermined.
fn fit(plane: &Plane, is_paper: &[bool]) -> Option<[f64; TERMS]> {
    // Normal equations, with the right-hand side as the last column.
    let mut rows = [[0.0_f64; TERMS + 1]; TERMS];
    for ((at, value), _) in places(plane).zip(plane.values()).zip(is_paper).filter(|(_, paper)| **paper) {
        let terms = terms(at).map(f64::from);
        for (row, left) in rows.iter_mut().zip(terms) {
            row.iter_mut().zip(terms).for_each(|(cell, right)| *cell += left * right);
            row[TERMS] += left * f64::from(*value);
        }
    }
    // Gauss-Jordan elimination; the matrix is positive semidefinite, so that no pivoting is needed.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lighting_gradient_is_removed_and_ink_is_preserved() {
        let mut values: Vec<f32> =
            (0..50 * 40).map(|at| 0.2 + 0.006 * (at % 50) as f32 + 0.004 * (at / 50) as f32).collect();
        for y in 10..30 {
            (20..24).for_each(|x| values[y * 50 + x] += 0.4);
        }
        let flat = flattened(&Plane::new(50, values));
        assert!(flat.at(0, 0).abs() < 0.01 && flat.at(49, 39).abs() < 0.01, "{}", flat.at(49, 39));
        assert!((flat.at(21, 20) - 0.4).abs() < 0.01, "{}", flat.at(21, 20));
    }

    #[test]
    fn too_small_a_picture_is_unchanged() {
        assert_eq!(flattened(&Plane::new(1, vec![0.5])).values(), [0.5]);
    }
}
