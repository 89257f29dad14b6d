//! Windows of a token sequence as a data set, and batches of them for language models.

use burn::data::{
    dataloader::batcher::Batcher,
    dataset::{Dataset, DatasetError},
};
use burn::tensor::{Device, Int, Tensor, TensorData};
use collective::sampler::mix;
use std::sync::Arc;

/// A text as numbers of tokens.
pub type Tokens = Arc<[i32]>;

/// Tokens `[batch, block size]` and the tokens that follow each of them.
pub type Windows = (Tensor<2, Int>, Tensor<2, Int>);

/// Starting positions of windows that do not overlap.
#[derive(Clone, Copy, Debug)]
pub struct WindowStarts {
    count: usize,
    block_size: usize,
}

impl WindowStarts {
    /// All windows in a text of `length` tokens. A `block_size` of 0 is treated as 1.
    pub fn new(length: usize, block_size: usize) -> Self {
        let block_size = block_size.max(1);
        // The last token of the text has no successor.
        Self { count: length.saturating_sub(1) / block_size, block_size }
    }

    /// Windows that may be moved by [`shift`].
    pub fn with_shift(length: usize, block_size: usize) -> Self {
        let block_size = block_size.max(1);
        Self { count: length.saturating_sub(block_size) / block_size, block_size }
    }
}

impl Dataset<usize> for WindowStarts {
    fn get(&self, index: usize) -> Result<usize, DatasetError> {
        Ok(index * self.block_size)
    }

    fn len(&self) -> usize {
        self.count
    }
}

/// Shift of all windows in `epoch`, below `block_size`, so that epochs divide the text in different places.
pub fn shift(seed: u64, epoch: usize, block_size: usize) -> usize {
    (mix(mix(seed, 1), epoch as u64) % block_size.max(1) as u64) as usize
}

/// Batches windows, given by their first positions, into tensors.
#[derive(Clone, Debug)]
pub struct WindowBatcher {
    pub tokens: Tokens,
    pub block_size: usize,
}

impl Batcher<usize, Windows> for WindowBatcher {
    fn batch(&self, starts: Vec<usize>, device: &Device) -> Windows {
        let shape = [starts.len(), self.block_size];
        let from = |offset: usize| {
            let window = |start: &usize| self.tokens[start + offset..][..self.block_size].iter().copied();
            let tokens: Vec<i32> = starts.iter().flat_map(window).collect();
            Tensor::from_data(TensorData::new(tokens, shape), device)
        };
        (from(0), from(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_window_is_within_the_text() {
        for length in 2..40 {
            for block_size in 1..length {
                let windows = WindowStarts::new(length, block_size);
                let last = windows.len().checked_sub(1).and_then(|last| windows.get(last).ok());
                assert!(last.is_some_and(|start| start + block_size < length));
                let shifted = WindowStarts::with_shift(length, block_size);
                let last = shifted.len().checked_sub(1).and_then(|last| shifted.get(last).ok());
                assert!(last.is_none_or(|start| start + (block_size - 1) + block_size < length));
            }
        }
    }

    #[test]
    fn targets_are_the_following_tokens() {
        let batcher = WindowBatcher { tokens: (0..20).collect(), block_size: 3 };
        let (inputs, targets) = batcher.batch(vec![0, 16], &Device::flex());
        let values =
            |tensor: Tensor<2, Int>| tensor.into_data().convert::<i32>().try_to_vec::<i32>().expect("i32");
        assert_eq!(values(inputs), [0, 1, 2, 16, 17, 18]);
        assert_eq!(values(targets), [1, 2, 3, 17, 18, 19]);
    }

    #[test]
    fn shifts_depend_on_seed_and_epoch_only() {
        let shifts = |seed| (1..9).map(|epoch| shift(seed, epoch, 64)).collect::<Vec<_>>();
        assert_eq!(shifts(7), shifts(7));
        assert_ne!(shifts(7), shifts(8));
        assert!(shifts(7).iter().all(|shift| *shift < 64));
    }
}
