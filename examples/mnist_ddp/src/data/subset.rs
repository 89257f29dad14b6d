//! The first images of MNIST, which are part of the program, for machines that cannot download all of them.

use super::{DataError, Dataset, idx};
use std::path::Path;

/// Includes a file of the subset, with its name for errors.
macro_rules! file {
    ($name:literal) => {
        (Path::new(concat!("subset/", $name)), &include_bytes!(concat!("../../subset/", $name))[..])
    };
}

impl Dataset {
    /// The subset of MNIST: 6,000 training and 2,000 test images, or the first `limits` of them.
    ///
    /// # Errors
    /// If the files were damaged when the program was built.
    pub fn subset(limits: [Option<usize>; 2]) -> Result<Self, DataError> {
        let [train, test] = limits.map(|limit| limit.unwrap_or(usize::MAX));
        let train_files = (file!("train-images-idx3-ubyte.gz"), file!("train-labels-idx1-ubyte.gz"));
        let test_files = (file!("t10k-images-idx3-ubyte.gz"), file!("t10k-labels-idx1-ubyte.gz"));
        Ok(Dataset {
            train: idx::decode(train_files.0, train_files.1)?.first(train),
            test: idx::decode(test_files.0, test_files.1)?.first(test),
            name: "subset",
            source: "part of the program".into(),
            notice: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Images, MEAN};
    use super::*;

    #[test]
    fn the_first_images_of_mnist() {
        let dataset = Dataset::subset([None, None]).unwrap();
        assert_eq!((dataset.train.len(), dataset.test.len()), (6000, 2000));
        assert_eq!(dataset.train.labels()[..10], [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]);
        assert_eq!(dataset.test.labels()[..10], [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]);
        let sum = |images: &Images| images.pixels().iter().map(|&pixel| u64::from(pixel)).sum::<u64>();
        assert_eq!((sum(&dataset.train), sum(&dataset.test)), (157_703_741, 48_335_026));
        // The constant refers to all 60,000 images.
        let mean = sum(&dataset.train) as f64 / 255.0 / dataset.train.pixels().len() as f64;
        assert!((mean - f64::from(MEAN)).abs() < 1e-3, "{mean}");
        let few = Dataset::subset([Some(30), Some(20)]).unwrap();
        assert_eq!((few.train.len(), few.test.len()), (30, 20));
        assert_eq!(few.train.pixels()[..], dataset.train.pixels()[..few.train.pixels().len()]);
    }
}
