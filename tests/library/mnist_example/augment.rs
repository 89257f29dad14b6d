//! `--augment` on the host and on a device.

use burn::tensor::{Device, Tensor, TensorData};
use mnist::{
    augment::{Augment, Movement, Mover},
    data::{PIXELS, SIDE, STD},
};

/// An image with one bright pixel.
fn dot(x: usize, y: usize) -> [u8; PIXELS] {
    let mut image = [0; PIXELS];
    image[y * SIDE + x] = 200;
    image
}

fn movement(right: f32, down: f32, degrees: f32, zoom: f32) -> Movement {
    let (sin, cos) = degrees.to_radians().sin_cos();
    Movement { bend: None, right, down, step: (cos / zoom, sin / zoom) }
}

fn brightest(image: &[f32]) -> (usize, usize) {
    let at = (0..PIXELS).max_by(|a, b| image[*a].total_cmp(&image[*b])).expect("pixels");
    (at % SIDE, at / SIDE)
}

#[test]
fn without_movement_images_are_unchanged() {
    let image = dot(5, 9);
    assert_eq!(movement(0.0, 0.0, 0.0, 1.0).apply(&image), image.map(f32::from));
    let none = Augment::default().draw(1, 2, 3);
    assert_eq!(none.apply(&image), image.map(f32::from));
}

#[test]
fn movements_have_the_documented_direction() {
    let image = dot(10, 10);
    assert_eq!(movement(2.0, -3.0, 0.0, 1.0).apply(&image), dot(12, 7).map(f32::from));
    let half = movement(0.5, 0.0, 0.0, 1.0).apply(&image);
    assert_eq!((half[10 * SIDE + 10], half[10 * SIDE + 11]), (100.0, 100.0));
    // A quarter turn clockwise on the screen, about (13.5, 13.5).
    assert_eq!(brightest(&movement(0.0, 0.0, 90.0, 1.0).apply(&image)), (17, 10));
    let larger = movement(0.0, 0.0, 0.0, 1.5).apply(&dot(11, 15));
    assert!([9, 10].contains(&brightest(&larger).0) && [15, 16].contains(&brightest(&larger).1));
    assert_eq!(movement(28.0, 0.0, 0.0, 1.0).apply(&image), [0.0; PIXELS]);
}

#[test]
fn elastic_distortion_displaces_neighbouring_pixels() {
    let mut bend = [[[0.0; 2]; 5]; 5];
    bend[1][2] = [2.0, -1.0];
    let bent = Movement { bend: Some(bend), ..movement(0.0, 0.0, 0.0, 1.0) };
    // The corner shows the pixel that was up and to the left of it.
    assert_eq!(bent.apply(&dot(12, 8))[7 * SIDE + 14], 200.0);
    assert_eq!(bent.apply(&dot(3, 20)), dot(3, 20).map(f32::from));
    let drawn: Augment = "elastic:3".parse().expect("good");
    let all: Vec<f32> = (0..100)
        .flat_map(|index| drawn.draw(1, 1, index).bend.expect("a bend").into_iter().flatten().flatten())
        .collect();
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
    let all: Vec<Movement> = (0..1000).map(|index| of(7, 1, index)).collect();
    let widest = |value: fn(&Movement) -> f32| all.iter().map(value).fold(0.0, |a: f32, b| a.max(b.abs()));
    assert!((1.9..=2.0).contains(&widest(|m| m.right)) && (1.9..=2.0).contains(&widest(|m| m.down)));
    let sine = 10f32.to_radians().sin();
    assert!((0.97 * sine..=sine * 1.0001).contains(&widest(|m| m.step.1)));
    let mean = all.iter().map(|m| m.right).sum::<f32>() / 1000.0;
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
    let device = Device::flex();
    let mover = Mover::new(&device);
    for flags in ["shift:3", "rotate:30", "zoom:20", "elastic:3", "shift,rotate,zoom,elastic"] {
        let augment: Augment = flags.parse().expect("a list of changes");
        let n = 20;
        let movements: Vec<Movement> = (0..n).map(|index| augment.draw(7, 1, index)).collect();
        let images: Vec<f32> = (0..n).flat_map(noise).map(f32::from).collect();
        let mut parameters = Vec::new();
        movements.iter().for_each(|movement| movement.extend_parameters(&mut parameters));
        let count = parameters.len() / n;
        let images = Tensor::from_data(TensorData::new(images, [n, PIXELS]), &device);
        let parameters = Tensor::from_data(TensorData::new(parameters, [n, count]), &device);
        let moved = mover.moved(images, &parameters).into_data().try_into_vec::<f32>().expect("f32");
        let expected = movements.iter().enumerate().flat_map(|(index, m)| m.apply(&noise(index)));
        let worst = moved.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // In units of normalised pixels.
        assert!(worst / 255.0 / STD <= 1e-5, "{flags}: {worst} of 255");
    }
}
