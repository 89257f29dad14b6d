//! Replicas of a module: their threads, and the reduction of their gradients on the main device.

use super::{
    DataParallelConfig, DpReduce, NamedDevice, Scatter,
    exchange::{Exchange, Member},
    scatter::shares,
    worker::{Pending, Replica, Worker, reason},
};
use crate::{
    Error, Options, ProcessGroup, Result, batch_scope::random_stream, gradient::add, parameters::values,
    sync_batch_norm::convert_sync_batch_norm,
};
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Device;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, PoisonError},
};

/// Replicas of one module on several devices of this process.
pub struct Replicas<M> {
    /// The device that holds the module and its optimizer.
    pub(super) main: (Device, String),
    pub(super) workers: Vec<Worker<M>>,
    pub(super) output: Device,
    reduction: DpReduce,
    /// The main device's end of the exchange, for an all-reduce.
    exchange: Option<Mutex<Exchange>>,
    /// SyncBatchNorm's groups, by number of replicas from one.
    ///
    /// Only the last, of all replicas, uses NCCL; the smaller ones are for batches with fewer samples than devices.
    groups: Vec<Vec<ProcessGroup>>,
    /// The first failure, after which a replica may be in the middle of a step.
    failure: Mutex<Option<Error>>,
}

impl<M: Module + 'static> Replicas<M> {
    /// Creates replicas of `model`, which is on the first device, on all other devices.
    ///
    /// # Errors
    /// If there is no device, the output device is not among them, a thread cannot be started, or NCCL is requested
    /// and cannot be used.
    pub fn new(model: &M, config: &DataParallelConfig) -> Result<Self> {
        let DataParallelConfig { devices, output, reduce, sites, threads, sync_batch_norm } = config;
        let Some((main, others)) = devices.split_first() else {
            return Err(Self::no_device());
        };
        let Some((output, _)) = devices.get(*output) else {
            return Err(Error::Invalid(format!(
                "the output device is number {output}, but there are {} devices",
                devices.len()
            )));
        };
        let autodiff = |device: &Device| device.clone().autodiff();
        let most = if *sync_batch_norm { devices.len() } else { 0 };
        let groups = (1..=most).map(|count| ProcessGroup::threads(count, Options::default()));
        let groups: Vec<_> = groups.collect::<Result<_>>()?;
        let statistics = groups.last().map_or(&[][..], Vec::as_slice);
        let mut members = match reduce {
            DpReduce::AllReduce => Member::all(devices.len(), sites, statistics)?.into_iter(),
            DpReduce::Main | DpReduce::Tree => Vec::new().into_iter(),
        };
        let member = members.next();
        let start = |(device, name): &NamedDevice| {
            Worker::start(model, &autodiff(device), name, *threads, members.next())
        };
        let workers = others.iter().map(start).collect::<Result<_>>()?;
        // The workers open theirs when they start.
        let exchange = member.map(|member| member.open(model)).transpose()?.map(Mutex::new);
        Ok(Replicas {
            groups,
            main: (autodiff(&main.0), main.1.clone()),
            workers,
            output: autodiff(output),
            reduction: *reduce,
            exchange,
            failure: Mutex::new(None),
        })
    }

    pub(crate) fn no_device() -> Error {
        Error::Invalid("data parallelism needs at least one device".into())
    }

    /// The number of samples in each replica's part of a batch.
    pub(super) fn sizes(&self, samples: usize) -> Vec<usize> {
        shares(samples, 1 + self.workers.len())
    }

    /// Splits `batch`, and starts `act` for the part of each worker, whose replica gets the parameters of `model`.
    ///
    /// Returns the number of samples of each part, the main device's part, and the results of the workers in progress.
    ///
    /// # Errors
    /// If the batch has no parts, or a thread has ended.
    pub(super) fn start<B: Scatter, R: Send + 'static>(
        &self,
        model: &M,
        batch: B,
        mut seed: impl FnMut() -> Option<u64>,
        act: impl Fn(&mut Replica<M>, B) -> Result<R, String> + Clone + Send + 'static,
    ) -> Result<(Vec<usize>, B, Vec<Pending<R>>)> {
        let sizes = self.sizes(batch.samples());
        let mut parts = batch.scatter(&sizes).into_iter();
        let Some(own) = parts.next() else { return Err(Error::Invalid("the batch has no parts".into())) };
        let mut pending = Vec::new();
        // If the batch is smaller than the number of devices, the last devices are idle.
        for (number, (worker, part)) in (1..).zip(self.workers[..sizes.len() - 1].iter().zip(parts)) {
            let (parameters, group) = (values(model, true), self.group(sizes.len(), number));
            let (seed, act) = (seed(), act.clone());
            pending.push(worker.run(move |replica| {
                replica.update(parameters, group)?;
                let part = part.to_device(&replica.device);
                let run = || act(replica, part);
                match seed {
                    Some(seed) => random_stream(seed).scope(run),
                    None => run(),
                }
            })?);
        }
        Ok((sizes, own, pending))
    }

    /// The statistics group of replica `number` of `count`.
    pub(super) fn group(&self, count: usize, number: usize) -> Option<ProcessGroup> {
        self.groups.get(count - 1).map(|groups| groups[number].clone())
    }

    /// The main device's module with its statistics synchronised over `count` replicas.
    ///
    /// Its running statistics are those of `module`.
    pub(super) fn converted(&self, module: &M, count: usize) -> Result<M> {
        match self.group(count, 0) {
            Some(group) => convert_sync_batch_norm(module.clone(), &group),
            None => Ok(module.clone()),
        }
    }

    /// Runs a step, unless an earlier one has failed: a replica may still be in the middle of that step.
    pub(super) fn unless_failed<R>(&self, step: impl FnOnce() -> Result<R>) -> Result<R> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &*failure {
            return Err(Error::Poisoned(Box::new(error.clone())));
        }
        step().inspect_err(|error| {
            // Other replicas may wait for this one's statistics.
            self.groups.iter().flatten().for_each(|group| group.abort(error.to_string()));
            if let Some(exchange) = &self.exchange {
                exchange.lock().unwrap_or_else(PoisonError::into_inner).abort(&error.to_string());
            }
            *failure = Some(error.clone());
        })
    }

    /// Sums the gradients of the main device and of the busy workers, `pending`, on the main device.
    ///
    /// Also returns the other results of the workers.
    pub(super) fn reduce<T>(
        &self,
        model: &M,
        own: GradientsParams,
        pending: Vec<Pending<(GradientsParams, T)>>,
        idle: &[Worker<M>],
    ) -> Result<(GradientsParams, Vec<T>)> {
        let wait = || -> Result<(Vec<GradientsParams>, Vec<T>)> {
            let results = pending.into_iter().map(Pending::wait).collect::<Result<Vec<_>>>()?;
            Ok(results.into_iter().unzip())
        };
        if let Some(exchange) = &self.exchange {
            let join = |worker: &Worker<M>| worker.run(|replica| replica.exchange(GradientsParams::new()));
            let idle = idle.iter().map(join).collect::<Result<Vec<_>>>()?;
            let mut exchange = exchange.lock().unwrap_or_else(PoisonError::into_inner);
            let sums = self.here(|| exchange.sums(own, model))?;
            // The failed replica's error is the cause of the group's.
            let (_, others) = wait()?;
            idle.into_iter().try_for_each(|joined| joined.wait().map(drop))?;
            return Ok((sums?, others));
        }
        let (grads, others) = wait()?;
        let devices = self.workers.iter().map(|worker| worker.device.clone());
        let found: Vec<_> = grads.into_iter().zip(devices).collect();
        let sum = self.here(|| match self.reduction {
            DpReduce::Tree => self.in_pairs(model, own, found),
            DpReduce::Main | DpReduce::AllReduce => {
                let main = self.main.0.clone().inner();
                found.into_iter().fold(own, |sum, (other, _)| add(model, sum, other.to_device(&main, model)))
            }
        })?;
        Ok((sum, others))
    }

    /// Adds all gradients up pairwise, over a binary tree.
    fn in_pairs(
        &self,
        model: &M,
        own: GradientsParams,
        mut found: Vec<(GradientsParams, Device)>,
    ) -> GradientsParams {
        found.insert(0, (own, self.main.0.clone()));
        while found.len() > 1 {
            let mut pairs = found.into_iter();
            found = Vec::new();
            while let Some((left, device)) = pairs.next() {
                let sum = match pairs.next() {
                    Some((right, _)) => add(model, left, right.to_device(&device.clone().inner(), model)),
                    None => left,
                };
                found.push((sum, device));
            }
        }
        found.pop().map(|(sum, _)| sum).unwrap_or_default()
    }

    /// Runs `act` on the main device's thread, which is the caller's.
    pub(super) fn here<R>(&self, act: impl FnOnce() -> R) -> Result<R> {
        catch_unwind(AssertUnwindSafe(act))
            .map_err(|panic| Error::Device { device: self.main.1.clone(), reason: reason(panic) })
    }
}
