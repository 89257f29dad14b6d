//! `--augment` on the host and on a device.

use burn::tensor::{Device, Tensor, TensorData};
use mnist::{
    augment::{Augment, Mover},
    data::{PIXELS, SIDE, STD},
};

/// An image with one bright pixel.
fn dot(x: usize, y: usize) -> [u8; PIXELS] {
    let mut image = [0; PIXELS];
    image[y * SIDE + x] = 200;
    image
}

/// Squares along a side of an image, for elastic distortion, and the corners of all squares.
const SQUARES: usize = 4;
const CORNERS: usize = (SQUARES + 1) * (SQUARES + 1);

fn movement(right: f32, down: f32, degrees: f32, zoom: f32) -> Vec<f32> {
    let (sin, cos) = degrees.to_radians().sin_cos();
    vec![right, down, cos / zoom, sin / zoom]
}

/// Bilinear interpolation at `x` and `y` between values on a grid, with 0 outside.
fn between(value: impl Fn(usize, usize) -> f32, side: usize, x: f32, y: f32) -> f32 {
    let (left, top) = (x.floor(), y.floor());
    let inside = 0.0..side as f32;
    let corner = |right: f32, down: f32| {
        let (x, y) = (left + right, top + down);
        if inside.contains(&x) && inside.contains(&y) { value(x as usize, y as usize) } else { 0.0 }
    };
    let row = |down| corner(0.0, down) * (1.0 - (x - left)) + corner(1.0, down) * (x - left);
    row(0.0) * (1.0 - (y - top)) + row(1.0) * (y - top)
}

/// An image that is transformed pixel by pixel: the reference for [`Mover`].
pub fn moved_on_host(parameters: &[f32], image: &[u8]) -> [f32; PIXELS] {
    let centre = (SIDE as f32 - 1.0) / 2.0;
    let bent = |axis: usize, x: usize, y: usize| {
        let Some(corners) = parameters.get(4 + axis * CORNERS..4 + (axis + 1) * CORNERS) else { return 0.0 };
        let place = |at: usize| at as f32 * SQUARES as f32 / SIDE as f32;
        between(|x, y| corners[y * (SQUARES + 1) + x], SQUARES + 1, place(x), place(y))
    };
    std::array::from_fn(|at| {
        let (column, row) = (at % SIDE, at / SIDE);
        let x = column as f32 - centre - parameters[0] - bent(0, column, row);
        let y = row as f32 - centre - parameters[1] - bent(1, column, row);
        let (cos, sin) = (parameters[2], parameters[3]);
        let pixel = |x: usize, y: usize| f32::from(image[y * SIDE + x]);
        between(pixel, SIDE, cos * x + sin * y + centre, cos * y - sin * x + centre)
    })
}

/// Transforms images in one batch.
fn moved(parameters: &[Vec<f32>], images: &[[u8; PIXELS]]) -> Vec<[f32; PIXELS]> {
    let device = Device::flex();
    let (n, count) = (images.len(), parameters[0].len());
    let images: Vec<f32> = images.concat().into_iter().map(f32::from).collect();
    let images = Tensor::from_data(TensorData::new(images, [n, PIXELS]), &device);
    let parameters = Tensor::from_data(TensorData::new(parameters.concat(), [n, count]), &device);
    let moved = Mover::new(&device).moved(images, &parameters);
    moved.into_data().try_into_vec::<f32>().expect("f32").as_chunks().0.to_vec()
}

/// Transforms one image, whose pixels are rounded to thousandths.
fn apply(parameters: &[f32], image: [u8; PIXELS]) -> [f32; PIXELS] {
    moved(&[parameters.to_vec()], &[image])[0].map(|pixel| (1e3 * pixel).round() / 1e3)
}

fn brightest(image: &[f32]) -> (usize, usize) {
    let at = (0..PIXELS).max_by(|a, b| image[*a].total_cmp(&image[*b])).expect("pixels");
    (at % SIDE, at / SIDE)
}

#[test]
fn without_movement_images_are_unchanged() {
    let image = dot(5, 9);
    assert_eq!(apply(&movement(0.0, 0.0, 0.0, 1.0), image), image.map(f32::from));
    let none = Augment::default().draw(1, 2, 3);
    assert_eq!(apply(&none, image), image.map(f32::from));
}

#[test]
fn movements_have_the_documented_direction() {
    let image = dot(10, 10);
    assert_eq!(apply(&movement(2.0, -3.0, 0.0, 1.0), image), dot(12, 7).map(f32::from));
    let half = apply(&movement(0.5, 0.0, 0.0, 1.0), image);
    assert_eq!((half[10 * SIDE + 10], half[10 * SIDE + 11]), (100.0, 100.0));
    // A quarter turn clockwise on the screen, about (13.5, 13.5).
    assert_eq!(brightest(&apply(&movement(0.0, 0.0, 90.0, 1.0), image)), (17, 10));
    let larger = apply(&movement(0.0, 0.0, 0.0, 1.5), dot(11, 15));
    assert!([9, 10].contains(&brightest(&larger).0) && [15, 16].contains(&brightest(&larger).1));
    assert_eq!(apply(&movement(28.0, 0.0, 0.0, 1.0), image), [0.0; PIXELS]);
}

#[test]
fn elastic_distortion_displaces_neighbouring_pixels() {
    let mut bent = [movement(0.0, 0.0, 0.0, 1.0), vec![0.0; 2 * CORNERS]].concat();
    // The corner at column 2 and row 1.
    (bent[4 + 7], bent[4 + CORNERS + 7]) = (2.0, -1.0);
    // The corner shows the pixel that was up and to the left of it.
    assert_eq!(apply(&bent, dot(12, 8))[7 * SIDE + 14], 200.0);
    assert_eq!(apply(&bent, dot(3, 20)), dot(3, 20).map(f32::from));
    let drawn: Augment = "elastic:3".parse().expect("good");
    let all: Vec<f32> = (0..100).flat_map(|index| drawn.draw(1, 1, index).split_off(4)).collect();
    assert_eq!(all.len(), 100 * 2 * CORNERS);
    let widest = all.iter().fold(0f32, |widest, offset| widest.max(offset.abs()));
    assert!((2.9..=3.0).contains(&widest), "{widest}");
}

#[test]
fn draws_are_bounded_and_depend_on_seed_epoch_and_image() {
    let augment: Augment = "shift:2,rotate:10".parse().expect("good");
    let of = |seed, epoch, index| augment.draw(seed, epoch, index);
    assert_eq!(of(1, 2, 3), of(1, 2, 3));
    for other in [of(2, 2, 3), of(1, 3, 3), of(1, 2, 4), of(1, 3, 2)] {
        assert_ne!(of(1, 2, 3), other);
    }
    let all: Vec<Vec<f32>> = (0..1000).map(|index| of(7, 1, index)).collect();
    let widest = |at: usize| all.iter().map(|parameters| parameters[at].abs()).fold(0.0, f32::max);
    assert!((1.9..=2.0).contains(&widest(0)) && (1.9..=2.0).contains(&widest(1)));
    let sine = 10f32.to_radians().sin();
    assert!((0.97 * sine..=sine * 1.0001).contains(&widest(3)));
    let mean = all.iter().map(|parameters| parameters[0]).sum::<f32>() / 1000.0;
    assert!(mean.abs() < 0.15, "{mean}");
}

#[test]
fn augmentations_are_named_as_documented() {
    let parsed = |text: &str| text.parse::<Augment>();
    assert_eq!(parsed("shift,rotate"), parsed("shift:2,rotate:10"));
    assert_eq!(parsed("none"), Ok(Augment::default()));
    for text in ["none", "shift:1", "shift:2,rotate:7.5,zoom:10", "zoom:5,elastic:1.5"] {
        assert_eq!(parsed(text).expect(text).to_string(), text);
    }
    for bad in ["", "flip", "shift:-1", "shift:29", "rotate:x", "shift,,", "none,shift", "rotate:NaN"] {
        assert!(parsed(bad).is_err(), "{bad}");
    }
}

/// The worst case for interpolation: neighbouring pixels differ as much as possible.
fn noise(index: usize) -> [u8; PIXELS] {
    std::array::from_fn(|at| if (at * 7919 + index * 104_729) % 13 < 6 { 255 } else { 0 })
}

#[test]
fn images_move_like_on_the_host() {
    for flags in ["shift:3", "rotate:30", "zoom:20", "elastic:3", "shift,rotate,zoom,elastic"] {
        let augment: Augment = flags.parse().expect("a list of changes");
        let parameters: Vec<Vec<f32>> = (0..20).map(|index| augment.draw(7, 1, index)).collect();
        let images: Vec<[u8; PIXELS]> = (0..20).map(noise).collect();
        let expected = parameters.iter().zip(&images).map(|(moved, image)| moved_on_host(moved, image));
        let pairs = moved(&parameters, &images).into_iter().flatten().zip(expected.flatten());
        let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // In units of normalised pixels.
        assert!(worst / 255.0 / STD <= 1e-5, "{flags}: {worst} of 255");
    }
}
