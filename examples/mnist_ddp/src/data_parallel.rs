//! Splitting of batches and training steps over the devices of `--mode dp`.

use crate::{batch::MnistBatch, model::Net};
use burn::tensor::{Device, Tensor};
use collective::{
    data_parallel::{ParallelStep, Scatter},
    metric::Classification,
};

impl Scatter for MnistBatch {
    fn samples(&self) -> usize {
        self.labels.dims()[0]
    }

    fn scatter(self, sizes: &[usize]) -> Vec<Self> {
        let parts = (self.images, self.labels).scatter(sizes);
        parts.into_iter().map(|(images, labels)| MnistBatch { images, labels }).collect()
    }

    fn to_device(self, device: &Device) -> Self {
        MnistBatch { images: self.images.to_device(device), labels: self.labels.to_device(device) }
    }
}

impl ParallelStep for Net {
    /// Logits `[batch, 10]`.
    type Outputs = Tensor<2>;

    fn forward_part(&self, part: MnistBatch) -> Tensor<2> {
        self.forward(part.images)
    }

    fn criterion(&self, logits: Tensor<2>, batch: MnistBatch) -> (Tensor<1>, Classification) {
        self.training_loss(logits, batch.labels)
    }
}
