//! The test images with the largest losses of a classifier: a callback over the test set, reduced over all ranks.

use crate::{
    data::{GreyImages, Picture},
    process::atomic_file,
    run::{
        RunFiles, png,
        tables::{self, MISTAKE_COLUMNS as COLUMNS, Mistake},
        tensor_io::{softmax, values},
    },
};
use anyhow::Context;
use burn::train::{InferenceStep, LearnerModel};
use collective::{
    World,
    metric::Classification,
    strategy::{Callback, Distributed, EpochReport, Join, LoggedValue},
};

/// Number of images in the picture.
pub const SHOWN: usize = 24;
/// Least side of an image in the picture, to which smaller images are enlarged.
const LEAST: usize = 84;
/// Side of an image, in frames.
const FRAMES: usize = 28;
const FRAME: u8 = 96;

/// Callback that writes the misclassified images with the largest loss to a table and a picture.
pub struct Misclassified {
    /// The test set, which every rank has completely.
    images: GreyImages,
    world: World,
    /// Number of images that this rank has evaluated.
    seen: usize,
    /// The misclassified images, in descending order of loss.
    worst: Vec<Mistake>,
    /// The files of the run, on the rank that writes.
    files: Option<RunFiles>,
}

impl Misclassified {
    /// Creates the callback. `images` must be distributed to the ranks in order, as evaluation does.
    pub fn new(images: GreyImages, world: World, files: Option<&RunFiles>) -> Self {
        Self { images, world, seen: 0, worst: Vec::new(), files: files.cloned() }
    }

    fn collect(&mut self, output: &Classification) -> Result<(), String> {
        let Some((logits, labels)) = output.answers() else { return Ok(()) };
        let [_, classes] = logits.dims();
        for (logits, label) in values(logits)?.chunks(classes).zip(values::<i64, 1, _>(labels)?) {
            let test_image = self.world.rank + self.seen * self.world.size;
            self.seen += 1;
            let label = label as usize;
            if self.images.labels.get(test_image).is_none_or(|own| usize::from(*own) != label) {
                return Err(format!("the test images are out of order: number {test_image}"));
            }
            self.worst.extend(mistake(test_image, label, logits));
        }
        self.keep_worst();
        Ok(())
    }

    fn keep_worst(&mut self) {
        self.worst.sort_by(|a, b| {
            a.label_probability.total_cmp(&b.label_probability).then(a.test_image.cmp(&b.test_image))
        });
        self.worst.truncate(SHOWN);
    }

    fn write(&self, files: &RunFiles, step: usize, worst: &[Mistake]) -> anyhow::Result<()> {
        let [table, picture] = ["misclassified.csv", "misclassified.png"].map(|name| files.folder.join(name));
        let header = ["test_image", "label", "answer", "label_probability", "answer_probability"];
        tables::write(&table, header, worst)?;
        if worst.is_empty() {
            // Removes an earlier picture if there are no misclassified images.
            return atomic_file::remove(&picture)
                .with_context(|| format!("cannot write {}", picture.display()));
        }
        let Picture { width, height, pixels, .. } = sheet(&self.images, worst);
        let png = png::grey(width, &pixels);
        atomic_file::write(&picture, &png)?;
        files.events.image("test/misclassified", step, [width, height], &png);
        Ok(())
    }
}

/// The mistake of an answer, if it is wrong and its probabilities are numbers.
fn mistake(test_image: usize, label: usize, logits: &[f32]) -> Option<Mistake> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let answer = logits.iter().position(|logit| *logit == largest)?;
    let probabilities = softmax(logits);
    (answer != label && probabilities[answer].is_finite()).then(|| Mistake {
        test_image,
        label,
        answer,
        label_probability: probabilities[label],
        answer_probability: probabilities[answer],
    })
}

/// Renders the images in rows of [`COLUMNS`], each enlarged and with a frame.
fn sheet(images: &GreyImages, worst: &[Mistake]) -> Picture {
    let (side, zoom) = (images.side, LEAST.div_ceil(images.side));
    let frame = (zoom * side).div_ceil(FRAMES);
    let square = zoom * side + 2 * frame;
    let (width, rows) = (COLUMNS * square, worst.len().div_ceil(COLUMNS));
    let mut pixels = vec![FRAME; width * rows * square];
    for (place, wrong) in worst.iter().enumerate() {
        let corner = (place / COLUMNS * square + frame) * width + place % COLUMNS * square + frame;
        for (at, pixel) in images.image(wrong.test_image).iter().enumerate() {
            for row in 0..zoom {
                let from = corner + (at / side * zoom + row) * width + at % side * zoom;
                pixels[from..from + zoom].fill(*pixel);
            }
        }
    }
    Picture { width, height: rows * square, channels: 1, pixels }
}

impl Distributed for Misclassified {
    type State = Vec<Mistake>;

    fn state(&mut self) -> Vec<Mistake> {
        std::mem::take(&mut self.worst)
    }

    fn join(&mut self, states: Vec<Vec<Mistake>>) {
        self.worst = states.into_iter().flatten().collect();
        self.keep_worst();
    }
}

impl<M: LearnerModel + InferenceStep<Output = Classification>> Callback<M> for Misclassified {
    fn evaluated(&mut self, output: &Classification, _samples: usize) -> Result<(), String> {
        self.collect(output).map_err(|reason| format!("cannot read the answers to the test images: {reason}"))
    }

    fn distributed(&mut self) -> Option<&mut dyn Join> {
        Some(self)
    }

    fn evaluation_done(&mut self, report: &EpochReport) -> Result<Vec<LoggedValue>, String> {
        self.seen = 0;
        let worst = std::mem::take(&mut self.worst);
        if let Some(files) = &self.files {
            self.write(files, report.step, &worst).map_err(|error| format!("{error:#}"))?;
        }
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test images of one shade, all of class 0.
    fn blank(count: usize) -> GreyImages {
        GreyImages { side: 28, pixels: vec![200; count * 28 * 28].into(), labels: vec![0; count].into() }
    }

    #[test]
    fn a_mistakes_loss_is_that_of_its_label() {
        let logits = [0.0, 2.0_f32.ln(), 0.0];
        assert_eq!(mistake(7, 1, &logits), None);
        assert_eq!(mistake(0, 0, &[0.0, f32::INFINITY]), None, "its probabilities are not numbers");
        let found = mistake(7, 2, &logits).expect("1 is likelier");
        assert_eq!((found.test_image, found.label, found.answer), (7, 2, 1));
        assert!((found.label_probability - 0.25).abs() < 1e-6, "{found:?}");
        assert!((found.answer_probability - 0.5).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn the_picture_has_a_frame_around_each_image() {
        let worst: Vec<Mistake> = (0..8).filter_map(|n| mistake(n, 1, &[1.0, 0.0])).collect();
        let sheet = sheet(&blank(8), &worst);
        // 84 pixels with a frame of 3.
        assert_eq!((sheet.width, sheet.height), (COLUMNS * 90, 180));
    }
}
