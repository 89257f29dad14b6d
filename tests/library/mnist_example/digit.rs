//! Conversion of pictures to MNIST's format.

use mnist::{
    data::SIDE,
    predict::{Picture, Plane, digit},
};

/// A curved stroke with ink 1 on paper 0, converted to grey by `shade`.
fn bent(shade: impl Fn(f32, usize) -> f32) -> Picture {
    let on =
        |x: usize, y: usize| (x / 6 == 5 && (12..90).contains(&y)) || (y / 6 == 14 && (30..70).contains(&x));
    let ink = (0..120 * 100).map(|at| f32::from(on(at % 120, at / 120)));
    let luma = Plane::new(120, ink.enumerate().map(|(at, ink)| shade(ink, at)).collect());
    Picture { alpha: luma.map(|_| 1.0), luma }
}

/// Pseudo-random numbers, −0.5 to 0.5.
fn noise(at: usize) -> f32 {
    ((at as u32).wrapping_mul(2_654_435_761) >> 16 & 0xff) as f32 / 255.0 - 0.5
}

#[test]
fn a_digit_is_20_pixels_high_centred_and_of_full_brightness() {
    let pixels = digit(&bent(|ink, _| 0.9 - 0.6 * ink)).expect("a digit");
    let rows: Vec<usize> = (0..SIDE).filter(|y| pixels[y * SIDE..][..SIDE].iter().any(|p| *p > 0)).collect();
    let columns: Vec<usize> = (0..SIDE).filter(|x| (0..SIDE).any(|y| pixels[y * SIDE + x] > 0)).collect();
    assert_eq!(rows.len(), 20);
    assert!((10..=11).contains(&columns.len()), "78 by 40, to scale: {}", columns.len());
    assert_eq!(pixels.iter().max(), Some(&255));
    let mass: f32 = pixels.iter().map(|p| f32::from(*p)).sum();
    let middle = |part: &dyn Fn(usize) -> usize| {
        let sum: f32 = pixels.iter().enumerate().map(|(at, p)| f32::from(*p) * (part(at) as f32 + 0.5)).sum();
        sum / mass
    };
    for middle in [middle(&|at| at % SIDE), middle(&|at| at / SIDE)] {
        assert!((14.0..=15.0).contains(&middle), "{middle}");
    }
}

#[test]
fn colours_lighting_and_texture_do_not_change_the_digit() {
    let plain = digit(&bent(|ink, _| 1.0 - ink)).expect("a digit");
    let light = |at: usize| 0.3 * (at % 120 + at / 120) as f32 / 220.0;
    let looks: [(&str, Picture); 4] = [
        ("light on dark", bent(|ink, _| 0.2 + 0.5 * ink)),
        ("faint", bent(|ink, _| 0.9 - 0.1 * ink)),
        ("slanting light", bent(|ink, at| 0.6 - 0.4 * ink + light(at))),
        ("texture", bent(|ink, at| 0.7 - 0.5 * ink + 0.1 * noise(at))),
    ];
    for (name, picture) in looks {
        let pixels = digit(&picture).expect(name);
        let apart = pixels.iter().zip(&plain).map(|(a, b)| u32::from(a.abs_diff(*b))).sum::<u32>();
        assert!(apart < 255 * 4, "{name}: {apart}");
    }
    let clear = bent(|ink, _| ink);
    let clear = Picture { luma: clear.luma.map(|_| 0.4), alpha: clear.luma };
    assert_eq!(digit(&clear), Some(plain));
}

#[test]
fn paper_without_ink_is_rejected() {
    assert_eq!(digit(&bent(|_, _| 0.8)), None);
    assert_eq!(digit(&bent(|_, at| 0.5 + 0.4 * noise(at))), None);
    assert_eq!(digit(&bent(|_, at| 0.2 + (at % 120) as f32 / 200.0)), None);
    let dot = Plane::new(1, vec![0.5]);
    assert_eq!(digit(&Picture { alpha: dot.map(|_| 1.0), luma: dot }), None);
}
