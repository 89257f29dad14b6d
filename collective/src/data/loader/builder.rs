//! Builder of a sharded loader, similar to Burn's `DataLoaderBuilder`.

use super::{
    ShardedBatch, ShardedBatches,
    sharded::ShardedLoader,
    workers::{self, Indices, streams},
};
use crate::{World, data::sampler::DistributedSampler};
use burn::data::{dataloader::batcher::Batcher, dataset::Dataset};
use burn::tensor::Device;
use std::sync::{Arc, atomic::AtomicUsize};

/// Transforms a sample in an epoch (from 1) before it is batched.
type Transform<I> = Arc<dyn Fn(usize, I) -> I + Send + Sync>;

/// Builds a [`ShardedLoader`]: see [`ShardedLoader::builder`].
pub struct ShardedLoaderBuilder<I, O> {
    dataset: Arc<dyn Dataset<I>>,
    batcher: Arc<dyn Batcher<I, O>>,
    batch_size: usize,
    seed: Option<u64>,
    workers: usize,
    transform: Option<Transform<I>>,
    weights: Option<Vec<f64>>,
}

impl<I, O> ShardedLoader<I, O> {
    /// Creates a builder of a loader over `dataset`, which may be an `Arc`.
    ///
    /// ```
    /// use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
    /// use burn::tensor::{Device, Tensor};
    /// use burn_ddp_collective::{World, loader::{DistributedLoader, ShardedLoader}};
    ///
    /// struct Stack;
    /// impl Batcher<f32, Tensor<1>> for Stack {
    ///     fn batch(&self, samples: Vec<f32>, device: &Device) -> Tensor<1> {
    ///         Tensor::from_data(samples.as_slice(), device)
    ///     }
    /// }
    ///
    /// let samples = InMemDataset::new(vec![0.5; 100]);
    /// let world = World { rank: 0, size: 2 };
    /// let loader = ShardedLoader::builder(samples, Stack).batch_size(16).shuffle(7).num_workers(2).build(world);
    /// assert_eq!(loader.epoch(1, 0, &Device::flex()).count(), 4);
    /// ```
    pub fn builder(
        dataset: impl Dataset<I> + 'static,
        batcher: impl Batcher<I, O> + 'static,
    ) -> ShardedLoaderBuilder<I, O> {
        ShardedLoaderBuilder {
            dataset: Arc::new(dataset),
            batcher: Arc::new(batcher),
            batch_size: 1,
            seed: None,
            workers: 0,
            transform: None,
            weights: None,
        }
    }
}

impl<I, O> ShardedLoaderBuilder<I, O> {
    burn_ddp_comm::setters! {
        /// Sets the number of samples of a rank's batch. Default: 1. 0 is treated as 1.
        batch_size(batch_size: usize) => batch_size = batch_size.max(1);

        /// Shuffles the whole data set in an order that depends on `seed` and the epoch.
        ///
        /// Default: the order of the data set.
        shuffle(seed: u64) => seed = Some(seed);

        /// Sets the number of threads that build batches ahead. Default: 0, the calling thread builds them.
        num_workers(num_workers: usize) => workers = num_workers;

        /// Applies `transform` to every sample and its epoch (from 1) on the threads that build batches.
        ///
        /// It must depend on its arguments only, so that equal epochs give equal samples.
        transform(transform: impl Fn(usize, I) -> I + Send + Sync + 'static) => transform = Some(Arc::new(transform));

        /// Draws the samples of an epoch with replacement, with probabilities proportional to `weights`.
        ///
        /// See [`DistributedSampler::weighted`]. It has no effect without [`shuffle`](Self::shuffle).
        ///
        /// # Panics
        /// In [`build`](Self::build), if there is not one weight per sample, or no weight is positive.
        sample_weights(weights: Vec<f64>) => weights = Some(weights);
    }

    /// Builds the loader of the rank that `world` names.
    pub fn build(self, world: World) -> ShardedLoader<I, O>
    where
        I: Send + 'static,
        O: Send + 'static,
    {
        self.build_finished(world, |item, _| item)
    }

    /// Builds the loader with a last step, `finish`, on the thread that takes the batches.
    ///
    /// Workers then assemble bytes. The thread that trains uploads them and launches the kernels that make a batch, on
    /// its own stream, so that it does not wait for another stream.
    pub fn build_finished<B>(
        self,
        world: World,
        finish: impl Fn(O, &Device) -> B + Send + Sync + 'static,
    ) -> ShardedLoader<I, B>
    where
        I: Send + 'static,
        O: Send + 'static,
        B: 'static,
    {
        let Self { dataset, batcher, batch_size, seed, workers, transform, weights } = self;
        let sampler = DistributedSampler::new(dataset.len(), world, seed);
        let sampler = match weights.filter(|_| seed.is_some()) {
            Some(weights) => sampler.weighted(&weights),
            None => sampler,
        };
        let (streams, finish) = (streams(workers), Arc::new(finish));
        let batches = Arc::new(move |dataset: Arc<dyn Dataset<I>>, epoch, batches, device: &Device| {
            let (batcher, transform) = (batcher.clone(), transform.clone());
            let (worker_device, device, finish) = (device.clone(), device.clone(), finish.clone());
            let make = move |ShardedBatch { item, samples, global_samples, last }: Indices| {
                // A rank without samples left still takes part in the step, with weight zero.
                let mut items = dataset.get_many(if item.is_empty() { vec![0] } else { item })?;
                if let Some(transform) = &transform {
                    items = items.into_iter().map(|sample| transform(epoch, sample)).collect();
                }
                let item = batcher.batch(items, &worker_device);
                Ok(ShardedBatch { item, samples, global_samples, last })
            };
            let made = workers::build(batches, &streams, make);
            let finished = made.map(move |batch| Ok(batch?.map(|item| finish(item, &device))));
            Box::new(finished) as ShardedBatches<B>
        });
        let (device, next_epoch) = (Device::default(), AtomicUsize::new(1));
        ShardedLoader { dataset, batches, sampler, first: 0, batch_size, device, next_epoch }
    }
}
