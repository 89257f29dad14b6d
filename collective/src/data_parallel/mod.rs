//! Data parallelism in one process, a thread per device, as PyTorch's `nn.DataParallel` does it.
//!
//! A step deals the mini-batch out along its batch dimension, runs the forward pass of a replica on
//! every device at the same time, gathers the outputs on the output device and computes the loss of
//! the whole batch there. The gradient of the outputs goes back to the replicas, which run their
//! backward passes at the same time; what they find is added up on the main device, where the one
//! optimizer works. The next step begins with the new parameters.
//!
//! Unlike in PyTorch, replicas live on between steps, and SyncBatchNorm works. Each keeps running statistics of its own; those
//! of the main device are the module's.

mod exchange;
mod scatter;
mod worker;

pub use scatter::{Outputs, Scatter, shares};

use crate::{
    Error, Options, ProcessGroup, Result, random, sync_batch_norm::convert_sync_batch_norm,
    transport::nccl::DeviceSite,
};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use burn::train::{TrainOutput, TrainStep};
use exchange::Exchange;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
};
use worker::{Worker, parameters, reason};

/// A module whose training step can be cut where the outputs are: what is before runs on every
/// device, what is after on one.
pub trait ParallelStep: TrainStep<Input: Scatter> + Module + 'static {
    /// What the forward pass gives.
    type Outputs: Outputs;
    /// The forward pass over a part of the batch.
    fn forward_part(&self, part: Self::Input) -> Self::Outputs;
    /// The loss `[1]` of the whole batch, and what metrics see of it.
    fn criterion(&self, outputs: Self::Outputs, batch: Self::Input) -> (Tensor<1>, Self::Output);
}

/// How the gradients of the replicas come together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DpReduce {
    /// One after the other into those of the main device.
    #[default]
    Main,
    /// In pairs, pairs of pairs, and so on: log₂ n steps, half the transfers between neighbours.
    Tree,
    /// In one all-reduce of all of them, NCCL's between NVIDIA GPUs.
    AllReduce,
}

/// Replicas of one module on several devices of this process.
pub struct DataParallel<M: ParallelStep> {
    /// The first holds the module and its optimizer.
    main: (Device, String),
    workers: Vec<Worker<M>>,
    output: Device,
    reduction: Reduction,
    /// For SyncBatchNorm: the groups of as many replicas as have a part of the batch, from one.
    groups: Vec<Vec<ProcessGroup>>,
    /// The first failure: some replica may be in the middle of a step then.
    failure: Mutex<Option<Error>>,
}

/// A [`DpReduce`] and what it takes.
enum Reduction {
    Main,
    Tree,
    /// With the main device's end.
    AllReduce(Exchange),
}

/// A device and what errors call it.
pub type NamedDevice = (Device, String);

/// Where the replicas are.
#[derive(Clone, Debug)]
pub struct DataParallelConfig {
    /// The first holds the module and its optimizer.
    pub devices: Vec<NamedDevice>,
    /// Which of them gathers the outputs and computes the loss, as a position in `devices`.
    pub output: usize,
    /// How gradients come together on the first.
    pub reduce: DpReduce,
    /// The devices as NCCL sees them, for [`DpReduce::AllReduce`]; none to go through host memory.
    pub sites: Vec<Arc<dyn DeviceSite>>,
    /// Compute threads of each replica on the CPU.
    pub threads: usize,
    /// Whether the module's [`SyncBatchNorm`](crate::sync_batch_norm::SyncBatchNorm)s take their
    /// statistics over all replicas.
    pub sync_batch_norm: bool,
}

impl<M: ParallelStep> DataParallel<M> {
    /// Replicas of `model`, which is on the first device, on all the others.
    ///
    /// # Errors
    /// If there is no device, or the output device is none of them, or a thread cannot be started, or NCCL
    /// was to be used and cannot.
    pub fn new(model: &M, config: &DataParallelConfig) -> Result<Self> {
        let DataParallelConfig { devices, output, reduce, sites, threads, sync_batch_norm } = config;
        let Some((main, others)) = devices.split_first() else {
            return Err(Error::Invalid("data parallelism needs at least one device".into()));
        };
        let Some((output, _)) = devices.get(*output) else {
            return Err(Error::Invalid(format!(
                "the output device is number {output}, but there are {} devices",
                devices.len()
            )));
        };
        let autodiff = |device: &Device| device.clone().autodiff();
        let mut exchanges = match reduce {
            DpReduce::AllReduce => Exchange::all(model, devices.len(), sites)?.into_iter(),
            DpReduce::Main | DpReduce::Tree => Vec::new().into_iter(),
        };
        let exchange = exchanges.next();
        let start = |(device, name): &NamedDevice| {
            Worker::start(model, &autodiff(device), name, *threads, exchanges.next())
        };
        let workers = others.iter().map(start).collect::<Result<_>>()?;
        let reduction = match (reduce, exchange) {
            (DpReduce::Tree, _) => Reduction::Tree,
            (_, Some(exchange)) => {
                // The workers do so as they start.
                exchange.open()?;
                Reduction::AllReduce(exchange)
            }
            (_, None) => Reduction::Main,
        };
        let most = if *sync_batch_norm { devices.len() } else { 0 };
        let groups = (1..=most).map(|count| ProcessGroup::threads(count, Options::default()));
        Ok(DataParallel {
            groups: groups.collect::<Result<_>>()?,
            main: (autodiff(&main.0), main.1.clone()),
            workers,
            output: autodiff(output),
            reduction,
            failure: Mutex::new(None),
        })
    }

    /// One training step of `model`, which is on the main device: its gradients, there, and what
    /// metrics see. The gradients are those of the loss over the whole batch.
    ///
    /// # Errors
    /// [`Error::Device`] for the first device whose thread failed or panicked; later steps fail
    /// with the same.
    pub fn step(&self, model: &M, batch: M::Input) -> Result<TrainOutput<M::Output>> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &*failure {
            return Err(Error::Poisoned(Box::new(error.clone())));
        }
        self.try_step(model, batch).inspect_err(|error| {
            // Other replicas may be waiting for this one's statistics.
            self.groups.iter().flatten().for_each(|group| group.abort(error.to_string()));
            if let Reduction::AllReduce(exchange) = &self.reduction {
                exchange.abort(&error.to_string());
            }
            *failure = Some(error.clone());
        })
    }

    fn try_step(&self, model: &M, batch: M::Input) -> Result<TrainOutput<M::Output>> {
        let sizes = shares(batch.samples(), 1 + self.workers.len());
        let mut parts = batch.clone().scatter(&sizes).into_iter();
        let Some(own) = parts.next() else { return Err(Error::Invalid("a batch without a part".into())) };
        // A batch smaller than the number of devices leaves the last ones out.
        let (busy, idle) = self.workers.split_at(sizes.len() - 1);
        let groups = self.groups.get(sizes.len() - 1);
        let group = |replica: usize| groups.map(|groups| groups[replica].clone());
        // Its running statistics are the same ones as the module's.
        let model = &match group(0) {
            Some(group) => convert_sync_batch_norm(model.clone(), &group)?,
            None => model.clone(),
        };
        for (replica, (worker, part)) in busy.iter().zip(parts).enumerate() {
            worker.forward(parameters(model), part, group(replica + 1), random::draw())?;
        }
        let own = self.here(|| model.forward_part(own.to_device(&self.main.0)))?;
        let mut all = vec![own.clone().detach()];
        for worker in busy {
            all.push(worker.outputs()?);
        }
        let (loss, item, gathered) = self.here(|| {
            let device = self.output.clone().inner();
            let gathered =
                M::Outputs::gather(all.into_iter().map(|part| part.to_device(&device)).collect()).leaf();
            let (loss, item) = model.criterion(gathered.clone(), batch.to_device(&self.output));
            (loss, item, gathered)
        })?;
        let (mut gradients, outputs) = self.here(|| {
            let mut gradients = loss.backward();
            let outputs = gathered.gradient(&gradients);
            // Those of parameters that the criterion itself uses.
            (GradientsParams::from_module(&mut gradients, model), outputs)
        })?;
        let mut outputs = outputs.scatter(&sizes).into_iter();
        let Some(mine) = outputs.next() else { return Err(Error::Invalid("outputs without a part".into())) };
        for (worker, gradient) in busy.iter().zip(outputs) {
            worker.backward(gradient)?;
        }
        let own = self.here(|| {
            let sum = own.weighted_sum(mine.to_device(&self.main.0.clone().inner()));
            GradientsParams::from_grads(sum.backward(), model)
        })?;
        let found = || -> Result<Vec<_>> {
            let gradients = |worker: &Worker<M>| Ok((worker.gradients()?, worker.device().clone()));
            busy.iter().map(gradients).collect()
        };
        let reduced = match &self.reduction {
            Reduction::AllReduce(exchange) => {
                idle.iter().try_for_each(Worker::join)?;
                let sums = self.here(|| exchange.sums(own, model))?;
                // A replica that failed knows more than the group, which only lost it.
                self.workers.iter().try_for_each(|worker| worker.gradients().map(drop))?;
                sums?
            }
            Reduction::Main => {
                let found = found()?;
                self.here(|| self.one_after_another(model, own, found))?
            }
            Reduction::Tree => {
                let found = found()?;
                self.here(|| self.in_pairs(model, own, found))?
            }
        };
        gradients = add(model, gradients.to_device(&self.main.0.clone().inner(), model), reduced);
        Ok(TrainOutput { grads: gradients, item })
    }

    /// All gradients added up on the main device, in the order of the devices.
    fn one_after_another(
        &self,
        model: &M,
        own: GradientsParams,
        found: Vec<(GradientsParams, Device)>,
    ) -> GradientsParams {
        let main = self.main.0.clone().inner();
        found.into_iter().fold(own, |sum, (other, _)| add(model, sum, other.to_device(&main, model)))
    }

    /// The same in pairs of neighbours, and pairs of those.
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

    /// What happens on the main device's thread, which is the caller's.
    fn here<R>(&self, act: impl FnOnce() -> R) -> Result<R> {
        catch_unwind(AssertUnwindSafe(act))
            .map_err(|panic| Error::Device { device: self.main.1.clone(), reason: reason(panic) })
    }
}

/// `a + b` for every parameter that either has a gradient for.
fn add<M: Module>(model: &M, a: GradientsParams, b: GradientsParams) -> GradientsParams {
    let mut add = Add { a, b };
    model.visit(&mut add);
    add.a
}

struct Add {
    a: GradientsParams,
    b: GradientsParams,
}

impl ModuleVisitor for Add {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(b) = self.b.remove::<D>(param.id) else { return };
        let sum = match self.a.remove::<D>(param.id) {
            Some(a) => a + b,
            None => b,
        };
        self.a.register(param.id, sum);
    }
}
