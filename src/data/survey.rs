//! A pass over all pictures before training: unreadable files, and mean and deviation of each channel.

use super::image_folder::{Image, ImageFolder};
use anyhow::{Result, bail};
use burn::data::dataset::Dataset;
use clap::ValueEnum;
use collective::ProcessGroup;
use kernels::pictures::{channel_sums, push_planes};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// Number of files that a warning or an error names.
const NAMED: usize = 3;

/// What happens with pictures that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnCorrupt {
    /// The run ends with an error that names them.
    #[default]
    Fail,
    /// They are left out, with one warning.
    Skip,
}

/// Mean and standard deviation of each channel, for pixels from 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Channels {
    pub mean: Vec<f64>,
    pub std: Vec<f64>,
}

impl Channels {
    /// Values `[picture, channel, row, column]` of pictures of one size, scaled to mean 0 and deviation 1.
    ///
    /// # Panics
    /// If a picture has another number of channels.
    pub fn normalise(&self, images: &[Image]) -> Vec<f32> {
        let tables: Vec<_> = (self.mean.iter().zip(&self.std))
            .map(|(mean, std)| std::array::from_fn(|value| ((value as f64 / 255.0 - mean) / std) as f32))
            .collect();
        let mut values = Vec::with_capacity(images.iter().map(|image| image.picture.pixels.len()).sum());
        for Image { picture, .. } in images {
            assert_eq!(picture.channels, tables.len(), "a mean and a deviation for each channel");
            push_planes(&picture.pixels, &tables, &mut values);
        }
        values
    }
}

/// Results of a part of the pictures.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Part {
    /// Indices of unreadable pictures, with reasons.
    corrupt: Vec<(usize, String)>,
    /// Number of values of each channel.
    count: u64,
    sums: Vec<u64>,
    squares: Vec<u64>,
}

impl Part {
    fn add(mut self, other: Part) -> Self {
        self.corrupt.extend(other.corrupt);
        self.count += other.count;
        let add = |to: &mut Vec<u64>, from: Vec<u64>| {
            to.resize(to.len().max(from.len()), 0);
            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        };
        add(&mut self.sums, other.sums);
        add(&mut self.squares, other.squares);
        self
    }

    fn from_picture(data: &ImageFolder, index: usize) -> Self {
        let image = match data.read(index) {
            Ok(image) => image,
            Err(error) => return Self { corrupt: vec![(index, format!("{error:#}"))], ..Self::default() },
        };
        let channels = image.picture.channels;
        let [sums, squares] = channel_sums(&image.picture.pixels, channels);
        let count = (image.picture.pixels.len() / channels) as u64;
        Self { corrupt: Vec::new(), count, sums, squares }
    }

    fn channels(&self) -> Channels {
        let count = self.count.max(1) as f64;
        let mean: Vec<f64> = self.sums.iter().map(|sum| *sum as f64 / count / 255.0).collect();
        let variance = |(square, mean): (&u64, &f64)| *square as f64 / count / 255.0 / 255.0 - mean * mean;
        // A channel of one value is not scaled.
        let std = self.squares.iter().zip(&mean).map(variance);
        let std = std.map(|variance| if variance > 1e-12 { variance.sqrt() } else { 1.0 }).collect();
        Channels { mean, std }
    }
}

/// Decodes every picture once, a part on each rank, so that all ranks agree on the pictures of the data set.
///
/// Returns the indices of the pictures that cannot be read, and the mean and deviation of the channels of the readable
/// pictures at `counted`, which are those to train on. Both lists are in ascending order. It is a collective: every rank
/// must call it. `warn` receives a warning of pictures that are skipped, on every rank.
///
/// # Errors
/// If the group fails, no picture can be read, or one cannot be read with [`OnCorrupt::Fail`].
pub fn survey(
    data: &ImageFolder,
    counted: &[usize],
    group: &ProcessGroup,
    on_corrupt: OnCorrupt,
    warn: impl FnOnce(&str),
) -> Result<(Vec<usize>, Channels)> {
    let mine: Vec<usize> = (group.rank()..data.len()).step_by(group.world_size()).collect();
    let part = mine.into_par_iter().map(|index| {
        let part = Part::from_picture(data, index);
        let is_counted = counted.binary_search(&index).is_ok();
        if is_counted { part } else { Part { corrupt: part.corrupt, ..Part::default() } }
    });
    let part = part.reduce(Part::default, Part::add);
    let mut whole = group.all_gather_object(&part)?.into_iter().fold(Part::default(), Part::add);
    whole.corrupt.sort();
    let first: Vec<&str> = whole.corrupt.iter().take(NAMED).map(|(_, reason)| reason.as_str()).collect();
    let others = match whole.corrupt.len().saturating_sub(NAMED) {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    let (count, all, named) = (whole.corrupt.len(), data.len(), format!("{}{others}", first.join("; ")));
    if count > 0 && (count == all || on_corrupt == OnCorrupt::Fail) && group.rank() > 0 {
        // Rank 0 reports the error, and this rank stops with it.
        group.barrier()?;
    }
    match on_corrupt {
        _ if count == 0 => {}
        _ if count == all => bail!("none of {all} pictures can be read: {named}"),
        OnCorrupt::Fail => bail!(
            "{count} of {all} pictures cannot be read: {named}; repair them, or leave them out with --on-corrupt skip"
        ),
        OnCorrupt::Skip => warn(&format!("{count} of {all} pictures are skipped: {named}")),
    }
    let channels = whole.channels();
    Ok((whole.corrupt.into_iter().map(|(index, _)| index).collect(), channels))
}

/// Weights with which every class is drawn equally often: 1 / the number of samples of the class.
///
/// For [`sample_weights`](collective::loader::ShardedLoaderBuilder::sample_weights).
pub fn class_weights(labels: impl IntoIterator<Item = usize>) -> Vec<f64> {
    let labels: Vec<usize> = labels.into_iter().collect();
    let mut counts = vec![0.0; labels.iter().max().map_or(0, |most| most + 1)];
    labels.iter().for_each(|label| counts[*label] += 1.0);
    labels.into_iter().map(|label| 1.0 / counts[label]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{data::ImageFormat, run::png};
    use std::fs;

    #[test]
    fn mean_and_deviation_are_those_of_the_counted_pictures() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for (class, shades) in [("a", [0, 0, 51, 51]), ("b", [255, 255, 0, 0])] {
            fs::create_dir(folder.path().join(class)).expect("created");
            fs::write(folder.path().join(class).join("1.png"), png::grey(2, &shades)).expect("written");
        }
        fs::write(folder.path().join("a/2.png"), "text").expect("written");
        let data = ImageFolder::open(folder.path(), ImageFormat { side: 2, channels: 1 }).expect("classes");
        let group = ProcessGroup::solo();
        let (corrupt, Channels { mean, std }) =
            survey(&data, &[0, 1, 2], &group, OnCorrupt::Skip, |_| ()).expect("skipped");
        assert_eq!(corrupt, [1]);
        assert!((mean[0] - 0.3).abs() < 1e-9, "{mean:?}");
        // Values 0, 0.2 and 1, with a share of 4/8, 2/8 and 2/8.
        assert!((std[0] - (0.25 * 0.04 + 0.25 - 0.09_f64).sqrt()).abs() < 1e-9, "{std:?}");
        let (_, Channels { mean, .. }) =
            survey(&data, &[2], &group, OnCorrupt::Skip, |_| ()).expect("skipped");
        assert!((mean[0] - 0.5).abs() < 1e-9, "the second class alone: {mean:?}");
    }

    #[test]
    fn every_class_has_the_same_weight() {
        assert_eq!(class_weights([0, 2, 2, 2, 2, 0]), [0.5, 0.25, 0.25, 0.25, 0.25, 0.5]);
        assert!(class_weights([]).is_empty());
    }
}
