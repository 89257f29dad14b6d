//! How a batch is split over the devices of `--mode dp` and cast for `--precision`, and how a training step is split.

use crate::{batch::MnistBatch, model::Net};
use burn::tensor::Tensor;
use collective::{data_parallel::ParallelStep, metric::Classification};

collective::scatter!(MnistBatch { images, labels });

impl ParallelStep for Net {
    /// Logits `[batch, 10]`.
    type Outputs = Tensor<2>;

    fn forward_part(&self, part: MnistBatch) -> Tensor<2> {
        self.forward(part.images)
    }

    fn criterion(&self, logits: Tensor<2>, batch: MnistBatch) -> (Tensor<1>, Classification) {
        self.judge(logits, batch.labels)
    }
}
