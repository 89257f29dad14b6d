//! A replica on its device, in a thread of its own. The thread lives as long as the replica, so
//! that the replica's running statistics belong to one thread, and panics end in an error.

use super::{ParallelStep, exchange::Exchange, scatter::Outputs};
use crate::{Error, ProcessGroup, Result, flex::is_flex, random, sync_batch_norm::convert_sync_batch_norm};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};

/// The trainable parameters of a module, outside any graph.
pub(super) fn parameters<M: Module>(module: &M) -> GradientsParams {
    let mut collect = Collect(GradientsParams::new());
    module.visit(&mut collect);
    collect.0
}

struct Collect(GradientsParams);

impl ModuleVisitor for Collect {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.is_require_grad() {
            self.0.register::<D>(param.id, param.val().inner());
        }
    }
}

/// Gives a module parameters from another device.
struct Receive<'a> {
    parameters: GradientsParams,
    device: &'a Device,
}

impl ModuleMapper for Receive<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.parameters.remove::<D>(param.id) {
            Some(value) => param
                .map(|_| Tensor::from_inner(value.to_device(&self.device.clone().inner())).require_grad()),
            None => param,
        }
    }
}

enum Command<M: ParallelStep> {
    /// New parameters, then a forward pass, with a seed for what it draws.
    Forward(GradientsParams, M::Input, Option<ProcessGroup>, Option<u64>),
    /// The backward pass of the last forward pass, from the gradient of its outputs.
    Backward(M::Outputs),
    /// No part of this batch, only of the exchange of gradients.
    Join,
}

enum Answer<M: ParallelStep> {
    /// Outside any graph.
    Outputs(M::Outputs),
    /// None where they were exchanged already.
    Gradients(GradientsParams),
}

/// The handle on a replica. Dropping it ends the thread once it has done what it is doing.
pub(super) struct Worker<M: ParallelStep> {
    device: Device,
    name: String,
    commands: Sender<Command<M>>,
    answers: Receiver<Result<Answer<M>, String>>,
}

impl<M: ParallelStep> Worker<M> {
    /// A replica of `model` on `device`, which errors call `name`. On the CPU it computes with
    /// `threads` threads of its own. With an exchange, it adds up gradients with the other replicas.
    pub fn start(
        model: &M,
        device: &Device,
        name: &str,
        threads: usize,
        exchange: Option<Exchange>,
    ) -> Result<Self> {
        let (commands, orders) = channel();
        let (reports, answers) = channel();
        // Running statistics are shared by clones; those that come back from inference are its own.
        let replica = model.valid().train().fork(device);
        let on = device.clone();
        let run = move || {
            // Flex computes on the pool of the thread that calls it.
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).use_current_thread().build();
            let opened = exchange.iter().try_for_each(Exchange::open).map_err(|error| error.to_string());
            let mut replica = Replica { module: replica, device: on, outputs: None, group: None, exchange };
            for order in orders {
                let answer = match (&pool, &opened) {
                    (Ok(_), Ok(())) => {
                        let result = catch_unwind(AssertUnwindSafe(|| replica.obey(order)));
                        result.unwrap_or_else(|panic| Err(reason(panic)))
                    }
                    (_, Err(reason)) => Err(reason.clone()),
                    (Err(error), _) => Err(format!("cannot start {threads} compute threads: {error}")),
                };
                if let Err(reason) = &answer {
                    // The other replicas may be waiting for this one's statistics or gradients.
                    replica.group.iter().for_each(|group| group.abort(reason.as_str()));
                    replica.exchange.iter().for_each(|exchange| exchange.abort(reason));
                }
                if reports.send(answer).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name(format!("replica {name}"))
            .spawn(run)
            .map_err(|error| Error::io(format!("start the thread of device {name}"), &error))?;
        Ok(Worker { device: device.clone(), name: name.into(), commands, answers })
    }

    /// With a group, the module's SyncBatchNorms share their statistics with it; with a seed, its random
    /// numbers are those of that seed.
    pub fn forward(
        &self,
        parameters: GradientsParams,
        part: M::Input,
        group: Option<ProcessGroup>,
        seed: Option<u64>,
    ) -> Result<()> {
        self.order(Command::Forward(parameters, part, group, seed))
    }

    pub fn outputs(&self) -> Result<M::Outputs> {
        match self.answer()? {
            Answer::Outputs(outputs) => Ok(outputs),
            Answer::Gradients(_) => Err(self.failed("it answered out of turn")),
        }
    }

    pub fn backward(&self, gradient: M::Outputs) -> Result<()> {
        self.order(Command::Backward(gradient))
    }

    /// Leaves the replica out of this batch; its gradients are zeros.
    pub fn join(&self) -> Result<()> {
        self.order(Command::Join)
    }

    pub fn gradients(&self) -> Result<GradientsParams> {
        match self.answer()? {
            Answer::Gradients(gradients) => Ok(gradients),
            Answer::Outputs(_) => Err(self.failed("it answered out of turn")),
        }
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    fn order(&self, command: Command<M>) -> Result<()> {
        self.commands.send(command).map_err(|_| self.failed("its thread has ended"))
    }

    fn answer(&self) -> Result<Answer<M>> {
        let answer = self.answers.recv().map_err(|_| self.failed("its thread has ended"))?;
        answer.map_err(|reason| self.failed(reason))
    }

    fn failed(&self, reason: impl Into<String>) -> Error {
        Error::Device { device: self.name.clone(), reason: reason.into() }
    }
}

/// What a panic said.
pub(super) fn reason(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message").into()
}

/// What is drawn from now on belongs to `seed`, whatever other replicas draw.
fn reseed(device: &Device, seed: u64) {
    random::seed(seed);
    // All replicas on the CPU share its generator, whose order is that of the training thread.
    if !is_flex(device) {
        device.seed(seed);
    }
}

struct Replica<M: ParallelStep> {
    module: M,
    device: Device,
    /// Of the last forward pass, with its graph.
    outputs: Option<M::Outputs>,
    group: Option<ProcessGroup>,
    exchange: Option<Exchange>,
}

impl<M: ParallelStep> Replica<M> {
    fn obey(&mut self, command: Command<M>) -> Result<Answer<M>, String> {
        match command {
            Command::Forward(parameters, input, group, seed) => {
                self.group = group;
                seed.into_iter().for_each(|seed| reseed(&self.device, seed));
                let mut receive = Receive { parameters, device: &self.device };
                self.module = self.module.clone().map(&mut receive);
                if let Some(group) = &self.group {
                    let module = convert_sync_batch_norm(self.module.clone(), group);
                    self.module = module.map_err(|error| error.to_string())?;
                }
                let outputs = self.module.forward_part(super::Scatter::to_device(input, &self.device));
                self.outputs = Some(outputs.clone());
                Ok(Answer::Outputs(outputs.detach()))
            }
            Command::Backward(gradient) => {
                let outputs = self.outputs.take().expect("forward comes before backward");
                let sum =
                    outputs.weighted_sum(super::Scatter::to_device(gradient, &self.device.clone().inner()));
                self.exchanged(GradientsParams::from_grads(sum.backward(), &self.module))
            }
            Command::Join => self.exchanged(GradientsParams::new()),
        }
    }

    fn exchanged(&self, gradients: GradientsParams) -> Result<Answer<M>, String> {
        let Some(exchange) = &self.exchange else { return Ok(Answer::Gradients(gradients)) };
        let sums = exchange.sums(gradients, &self.module);
        sums.map(|_| Answer::Gradients(GradientsParams::new())).map_err(|error| error.to_string())
    }
}
