//! `image_folder shapes`: a small data set of drawn shapes, for a first run and for tests.

use anyhow::{Context, Result, bail};
use burn_ddp::sampler::mix;
use burn_ddp::{context::values::positive, process::console::print_line, run::png};
use clap::Args;
use std::{fs, path::PathBuf, process::ExitCode};

/// Side of a picture.
const SIDE: usize = 32;
/// The distance of a point from the centre, relative to that of the edge.
type Distance = fn(f64, f64) -> f64;

/// The classes and their shapes.
const SHAPES: [(&str, Distance); 6] = [
    ("circle", |x, y| x.hypot(y)),
    ("cross", |x, y| x.abs().min(y.abs()) * 3.0 + 0.4 * x.abs().max(y.abs())),
    ("diamond", |x, y| x.abs() + y.abs()),
    ("ring", |x, y| 0.6 + 2.0 * (x.hypot(y) - 0.75).abs()),
    ("square", |x, y| x.abs().max(y.abs())),
    ("triangle", |x, y| (y.abs()).max(2.0 * x.abs() - y - 0.2)),
];

#[derive(Args)]
pub struct ShapesArgs {
    /// New folder of the data set
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Pictures per class
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = positive)]
    count: usize,
}

/// Draws the data set.
///
/// # Errors
/// If the folder exists or a file cannot be written.
pub fn run(ShapesArgs { folder, count }: &ShapesArgs) -> Result<ExitCode> {
    if folder.exists() {
        bail!("{} already exists; name another folder, or remove it", folder.display());
    }
    for (class, (name, distance)) in SHAPES.iter().enumerate() {
        let path = folder.join(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        for number in 0..*count {
            let file = path.join(format!("{number:04}.png"));
            let pixels = draw(*distance, mix(class as u64, number as u64));
            fs::write(&file, png::grey(SIDE, &pixels))
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    print_line(&format!("{}: {} classes of {count} pictures", folder.display(), SHAPES.len()))?;
    Ok(ExitCode::SUCCESS)
}

/// A shape of random size, place, angle and shade on a noisy ground.
fn draw(distance: Distance, seed: u64) -> Vec<u8> {
    // Uniform in 0..1.
    let draw = |number: u64| mix(seed, number) as f64 / u64::MAX as f64;
    let (radius, angle) = (7.0 + 6.0 * draw(0), 0.5 * (draw(1) - 0.5));
    let [x, y] = [2, 3].map(|number| SIDE as f64 / 2.0 + 6.0 * (draw(number) - 0.5));
    let (shade, ground) = (140.0 + 100.0 * draw(4), 60.0 * draw(5));
    let (sin, cos) = angle.sin_cos();
    let pixel = |index: usize| {
        let (right, down) = ((index % SIDE) as f64 - x, (index / SIDE) as f64 - y);
        let inside = distance((cos * right + sin * down) / radius, (cos * down - sin * right) / radius) < 1.0;
        let noise = 30.0 * (draw(10 + index as u64) - 0.5);
        (if inside { shade } else { ground } + noise).clamp(0.0, 255.0) as u8
    };
    (0..SIDE * SIDE).map(pixel).collect()
}
