//! Removal of uneven lighting from photographs.

use super::picture::Plane;

/// Number of terms of the surface that is fitted to the paper: Legendre polynomials up to the second degree.
const TERMS: usize = 6;
/// Number of fits; each excludes what the previous one classified as ink.
const ROUNDS: usize = 6;
/// Number of passes over the terms in a fit, after which its error is far below a shade of the image.
const SWEEPS: usize = 8;
/// Maximum side of the reduced image to which the surface is fitted.
const SIDE: usize = 64;

/// Subtracts the quadratic surface that best fits the paper from bright ink on dark paper.
pub(super) fn evened(plane: &Plane) -> Plane {
    let small = plane.scaled((SIDE as f32 / plane.width.max(plane.height()) as f32).min(1.0));
    let places: Vec<[f32; TERMS]> = terms(&small).collect();
    let (mut apart, mut surface) = (small.values, [0.0; TERMS]);
    let mut is_paper = vec![true; apart.len()];
    for _ in 0..ROUNDS {
        // Gauss–Seidel iteration: least squares in one term after the other.
        for term in (0..TERMS).cycle().take(SWEEPS * TERMS) {
            let (mut along, mut norm) = (0.0, f32::MIN_POSITIVE);
            for ((place, apart), _) in places.iter().zip(&apart).zip(&is_paper).filter(|(_, paper)| **paper) {
                along += place[term] * apart;
                norm += place[term] * place[term];
            }
            surface[term] += along / norm;
            apart.iter_mut().zip(&places).for_each(|(apart, place)| *apart -= along / norm * place[term]);
        }
        let papers = || apart.iter().zip(&is_paper).filter(|(_, paper)| **paper).map(|(apart, _)| apart);
        let spread =
            (papers().map(|apart| apart * apart).sum::<f32>() / papers().count().max(1) as f32).sqrt();
        // Ink is brighter than the paper. A uniform image has only rounding errors.
        is_paper = apart.iter().map(|apart| *apart < (1.5 * spread).max(0.01)).collect();
    }
    let height =
        |place: [f32; TERMS]| place.iter().zip(&surface).map(|(term, factor)| term * factor).sum::<f32>();
    let values = terms(plane).zip(&plane.values).map(|(place, value)| value - height(place));
    Plane::new(plane.width, values.collect())
}

/// The terms at each value, with coordinates from −1 to 1.
fn terms(plane: &Plane) -> impl Iterator<Item = [f32; TERMS]> {
    let (width, height) = (plane.width, plane.height());
    let middle = |at: usize, length: usize| (2 * at + 1) as f32 / length as f32 - 1.0;
    (0..width * height).map(move |at| {
        let (x, y) = (middle(at % width, width), middle(at / width, height));
        [1.0, x, y, x * x - 1.0 / 3.0, x * y, y * y - 1.0 / 3.0]
    })
}
