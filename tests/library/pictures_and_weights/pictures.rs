//! `burn-ddp predict` on various kinds of images.

use super::{
    common::{Run, reference::mnist, trained},
    mnist_ddp, python_with,
};
use flate2::{Compression, Crc, write::ZlibEncoder};
use mnist::data::{self, Images, PIXELS, Places, SIDE};
use serde_json::Value;
use std::{fs, io::Write, path::Path, process::Command};

/// Writes a PNG with `bytes` per pixel: 1 for grey, 4 for RGBA.
fn png(path: &Path, width: usize, bytes: usize, pixels: &[u8]) {
    let rows = pixels.chunks(width * bytes);
    let size = [width as u32, rows.len() as u32].map(u32::to_be_bytes).concat();
    let kind = if bytes == 4 { 6 } else { 0 };
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::fast());
    rows.for_each(|row| packed.write_all(&[&[0], row].concat()).expect("packed"));
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    for (name, data) in [
        (b"IHDR", [&size[..], &[8, kind, 0, 0, 0]].concat()),
        (b"IDAT", packed.finish().expect("packed")),
        (b"IEND", vec![]),
    ] {
        let mut sum = Crc::new();
        sum.update(&[&name[..], &data].concat());
        file.extend([&(data.len() as u32).to_be_bytes()[..], name, &data, &sum.sum().to_be_bytes()].concat());
    }
    fs::write(path, file).expect("written");
}

/// Presentation of a 28×28 digit in an image.
#[derive(Clone, Copy, Debug)]
enum Look {
    /// Unchanged.
    Plain,
    /// Dark on light, scaled by 9, in a corner of a large sheet.
    Sheet,
    /// Light grey on dark grey, scaled by 5, in the opposite corner.
    Board,
    /// Red on transparent, scaled by 4.
    Transparent,
}

impl Look {
    fn write(self, path: &Path, image: &[u8]) {
        let enlarged = |times: usize, [width, height]: [usize; 2], [left, top]: [usize; 2]| {
            let inside =
                |at: usize, from: usize| at.checked_sub(from).map(|at| at / times).filter(|at| *at < SIDE);
            let ink = |at: usize| match (inside(at % width, left), inside(at / width, top)) {
                (Some(x), Some(y)) => image[y * SIDE + x],
                _ => 0,
            };
            (0..width * height).map(ink).collect::<Vec<u8>>()
        };
        match self {
            Look::Plain => png(path, SIDE, 1, image),
            Look::Sheet => {
                let ink = enlarged(9, [700, 400], [20, 130]);
                png(path, 700, 1, &ink.iter().map(|ink| 250 - ink / 5 * 4).collect::<Vec<_>>());
            }
            Look::Board => {
                let ink = enlarged(5, [300, 250], [150, 100]);
                png(path, 300, 1, &ink.iter().map(|ink| 40 + ink / 2).collect::<Vec<_>>());
            }
            Look::Transparent => {
                let ink = enlarged(4, [200, 150], [60, 30]);
                png(path, 200, 4, &ink.iter().flat_map(|ink| [200, 30, 20, *ink]).collect::<Vec<_>>());
            }
        }
    }
}

/// Predictions of the program by file.
fn predicted(model: &Path, files: &[String]) -> Vec<Value> {
    let mut args = vec!["predict", "--json", "--model", model.to_str().expect("UTF-8")];
    args.extend(files.iter().map(String::as_str));
    let outcome = mnist_ddp(&args).succeeded();
    outcome.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Number of images that are classified.
const COUNT: usize = 100;

/// A model trained on MNIST, and images outside its training set.
fn model() -> (Run, Images) {
    let run = trained(&format!(
        "--dataset mnist --data-dir {} --eval-limit {COUNT} --nproc-per-node 2 --batch-size 8 --lr 0.01 --network lenet \
         --dropout 0",
        mnist().display()
    ));
    let args = data::DataArgs { data_dir: Some(mnist()), ..data::DataArgs::default() };
    let places = Places::from_process(true, false).expect("places");
    (run, data::load(&args, &places).expect("MNIST").test)
}

#[test]
fn pictures_of_any_size_position_and_colour_are_classified() {
    let (run, images) = model();
    let accuracy = run.summary()["test_accuracy"].as_f64().expect("an accuracy");
    let least = COUNT as f64 * (accuracy - 0.03);
    println!("{accuracy} of the images themselves");
    let folder = tempfile::tempdir().expect("temporary folder");
    for look in [Look::Plain, Look::Sheet, Look::Board, Look::Transparent] {
        let files: Vec<String> = (0..COUNT)
            .map(|index| {
                let path = folder.path().join(format!("{look:?}-{index}.png"));
                look.write(&path, images.image(index));
                path.display().to_string()
            })
            .collect();
        let predictions = predicted(&run.path, &files);
        assert_eq!(predictions.len(), COUNT);
        let right = predictions.iter().enumerate().filter(|(index, prediction)| {
            let probabilities = prediction["probabilities"].as_array().expect("numbers");
            let sum: f64 = probabilities.iter().filter_map(Value::as_f64).sum();
            assert!(probabilities.len() == 10 && (sum - 1.0).abs() < 1e-9, "{prediction}");
            prediction["digit"] == images.labels[*index]
        });
        let right = right.count();
        println!("{look:?}: {right} of {COUNT}");
        assert!(right as f64 >= least, "{look:?}: {right} of {COUNT}, not {least}");
    }

    // A small JPEG of a camera rotated 90° counterclockwise.
    let turned = folder.path().join("turned.jpg");
    fs::write(&turned, include_bytes!("turned.jpg")).expect("written");
    let mut drawn = drawn_by_another_program(folder.path());
    drawn.push(turned.display().to_string());
    for prediction in predicted(&run.path, &drawn) {
        assert_eq!(prediction["digit"], 7, "{prediction}");
    }
    let file = folder.path().join("Sheet-0.png").display().to_string();
    let model = run.path.display().to_string();
    let outcome = mnist_ddp(&["predict", "--show", "--model", &model, &file]).succeeded();
    let last = outcome.stdout.lines().last().expect("a line");
    assert!(last.contains(&file) && last.contains(&format!("   {}   ", images.labels[0])), "{last}");
    assert_eq!(outcome.stdout.lines().count(), SIDE / 2 + 1, "{}", outcome.stdout);
}

/// Pillow script that draws sevens: pens, papers, and file types of programs and cameras.
const SEVENS: &str = r#"
import sys
from PIL import Image, ImageDraw
folder = sys.argv[1] + "/7-"
def seven(width, paper="white", ink="navy", mode="RGB"):
    picture = Image.new(mode, (600, 600), paper)
    line = [(150, 120), (420, 110), (260, 480)]
    ImageDraw.Draw(picture).line(line, fill=ink, width=width, joint="curve")
    return picture
pen = seven(12)
pen.save(folder + "pen.png")
seven(3).save(folder + "thin.png")
seven(45).save(folder + "fat.png")
seven(20, "black", "yellow").save(folder + "board.jpg", quality=60)
seven(12, (0, 0, 0, 0), (90, 90, 90, 255), "RGBA").save(folder + "clear.png")
pen.quantize(4).save(folder + "palette.png", transparency=0)
pen.convert("1").save(folder + "bits.png")
deep = b"".join(bytes([v, v]) for v in pen.convert("L").tobytes())
Image.frombytes("I;16", (600, 600), deep).save(folder + "deep.png")
pen.resize((2000, 2000)).save(folder + "large.png")
exif = Image.Exif()
exif[0x0112] = 6 # the camera was held a quarter turn to the left
pen.rotate(90).save(folder + "turned.jpg", exif=exif)
"#;

/// Files of the drawn sevens; empty without Pillow.
fn drawn_by_another_program(folder: &Path) -> Vec<String> {
    let Some(python) = python_with(&["PIL"]) else { return Vec::new() };
    let output = Command::new(python).args(["-c", SEVENS]).arg(folder).output().expect("Python");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let files = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let files: Vec<String> =
        files.map(|path| path.display().to_string()).filter(|path| path.contains("/7-")).collect();
    assert_eq!(files.len(), 10);
    files
}

#[test]
fn images_without_a_digit_are_named_and_the_others_classified() {
    let run = trained("--dataset subset --mode single --train-limit 8 --eval-limit 10 --max-steps 1");
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = |name: &str| folder.path().join(name);
    png(&path("empty.png"), 40, 1, &[200; 40 * 30]);
    png(&path("nothing.png"), 40, 4, &[0; 40 * 30 * 4]);
    fs::write(path("text.png"), "not a picture").expect("written");
    let mut dot = vec![255; 50 * 50];
    (20..30).for_each(|y| dot[y * 50 + 24..y * 50 + 27].fill(0));
    png(&path("one.png"), 50, 1, &dot);
    let whole = fs::read(path("one.png")).expect("a picture");
    fs::write(path("cut.png"), &whole[..whole.len() / 2]).expect("written");
    let model = run.path.display().to_string();
    let predict = |name: &str| mnist_ddp(&["predict", "--model", &model, &path(name).display().to_string()]);
    for (name, words) in [
        ("empty.png", "no digit found"),
        ("nothing.png", "no digit found"),
        ("text.png", "neither a PNG nor a JPEG"),
        ("cut.png", "damaged PNG image"),
        ("none.png", "cannot read"),
    ] {
        predict(name).failed_with(&[name, words]);
    }
    let files = ["empty.png", "one.png"].map(|name| path(name).display().to_string());
    let outcome = mnist_ddp(&["predict", "--model", &model, &files[0], &files[1]]);
    outcome.failed_with(&["empty.png"]);
    assert!(outcome.stdout.contains("one.png"), "{outcome:#?}");
    let outcome = mnist_ddp(&["predict", "--model", &folder.path().display().to_string(), &files[1]]);
    outcome.failed_with(&["--model", "no model in this folder"]);
    assert_eq!(PIXELS, SIDE * SIDE);
}
