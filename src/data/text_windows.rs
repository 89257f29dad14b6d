//! Windows of a token sequence as a data set, and batches of them for language models.

use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::tensor::{Device, Int, Tensor, TensorData};
use collective::sampler::mix;
use std::sync::Arc;

/// A text as numbers of tokens.
pub type Tokens = Arc<[i32]>;

/// Tokens `[batch, block size]` and the tokens that follow each of them.
pub type Windows = (Tensor<2, Int>, Tensor<2, Int>);

/// Starting positions of the windows of a text of `length` tokens.
///
/// Windows do not overlap and may be moved by up to `max_shift` tokens. A `block_size` of 0 is treated as 1.
pub fn window_starts(length: usize, block_size: usize, max_shift: usize) -> InMemDataset<usize> {
    let block_size = block_size.max(1);
    // The last token of the text has no successor.
    let windows = length.saturating_sub(max_shift + 1) / block_size;
    InMemDataset::new((0..windows).map(|window| window * block_size).collect())
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
    use burn::data::dataset::Dataset;

    #[test]
    fn every_window_is_within_the_text() {
        for length in 2..40 {
            for block_size in 1..length {
                let last = |most_shift| {
                    let windows = window_starts(length, block_size, most_shift);
                    windows.len().checked_sub(1).and_then(|last| windows.get(last).ok())
                };
                assert!(last(0).is_some_and(|start| start + block_size < length));
                let shifted = last(block_size - 1);
                assert!(shifted.is_none_or(|start| start + (block_size - 1) + block_size < length));
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
