//! A replica on its device, in its own thread.
//!
//! The thread lives as long as the replica, so that one thread owns the replica's running statistics. Panics become
//! errors.

use super::exchange::Exchange;
use crate::{
    Error, ProcessGroup, Result,
    device_error::{cause_of_panic, panic_text},
    sync_batch_norm::convert_sync_batch_norm,
};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};
use tracing::info_span;

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

/// Replaces a module's parameters by those from another device.
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

/// A replica in its thread.
pub(super) struct Replica<M> {
    pub module: M,
    pub device: Device,
    group: Option<ProcessGroup>,
    exchange: Option<Exchange>,
}

impl<M: Module> Replica<M> {
    /// Replaces the parameters. With a group, SyncBatchNorm layers synchronise their statistics over it.
    ///
    /// # Errors
    /// If the module contains a `burn::nn::BatchNorm` that is trained.
    pub fn update(&mut self, parameters: GradientsParams, group: Option<ProcessGroup>) -> Result<(), String> {
        self.group = group;
        let mut receive = Receive { parameters, device: &self.device };
        self.module = self.module.clone().map(&mut receive);
        if let Some(group) = &self.group {
            let module = convert_sync_batch_norm(self.module.clone(), group);
            self.module = module.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Reduces the gradients over the replicas, or returns them for the main device to reduce.
    ///
    /// # Errors
    /// If the all-reduce over the replicas fails.
    pub fn exchange(&self, gradients: GradientsParams) -> Result<GradientsParams, String> {
        let Some(exchange) = &self.exchange else { return Ok(gradients) };
        let sums = exchange.sums(gradients, &self.module);
        sums.map(|_| GradientsParams::new()).map_err(|error| error.to_string())
    }

    /// Other replicas may be waiting for this one's statistics or gradients.
    fn abort(&self, reason: &str) {
        self.group.iter().for_each(|group| group.abort(reason));
        self.exchange.iter().for_each(|exchange| exchange.abort(reason));
    }
}

/// A job for a replica. It receives an error if the replica cannot run jobs.
type Job<M> = Box<dyn FnOnce(&mut Replica<M>, Result<(), String>) + Send>;

/// Handle of a replica. Dropping it ends the thread after the job in progress.
pub(super) struct Worker<M> {
    device: Device,
    name: String,
    jobs: Sender<Job<M>>,
}

/// The result of a job in progress.
pub(super) struct Pending<R> {
    name: String,
    result: Receiver<Result<R, String>>,
}

impl<R> Pending<R> {
    /// # Errors
    /// [`Error::Device`] if the job failed or panicked.
    pub fn wait(self) -> Result<R> {
        let result = self.result.recv().map_err(|_| ended(&self.name))?;
        result.map_err(|reason| Error::Device { device: self.name, reason })
    }
}

fn ended(name: &str) -> Error {
    Error::Device { device: name.into(), reason: "its thread has ended".into() }
}

impl<M: Module + 'static> Worker<M> {
    /// Starts a replica of `model` on `device`, which is `name` in errors.
    ///
    /// On the CPU it computes with `threads` threads. With an exchange, it reduces gradients with the other replicas.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        model: &M,
        device: &Device,
        name: &str,
        threads: usize,
        exchange: Option<Exchange>,
    ) -> Result<Self> {
        let (jobs, queue) = channel::<Job<M>>();
        // Clones share running statistics; a module returned from inference has its own.
        let module = model.valid().train().fork(device);
        let on = device.clone();
        let run = move || {
            // Flex computes in the thread pool of the calling thread.
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).use_current_thread().build();
            let pool = pool.map_err(|error| format!("cannot start {threads} compute threads: {error}"));
            let opened = exchange.iter().try_for_each(Exchange::open).map_err(|error| error.to_string());
            let ready = opened.and(pool.as_ref().map(drop).map_err(Clone::clone));
            let mut replica = Replica { module, device: on, group: None, exchange };
            for job in queue {
                job(&mut replica, ready.clone());
            }
        };
        thread::Builder::new()
            .name(format!("replica {name}"))
            .spawn(run)
            .map_err(|error| Error::io(format!("start the thread of device {name}"), &error))?;
        Ok(Worker { device: device.clone(), name: name.into(), jobs })
    }

    /// Starts `act` on the replica's thread.
    ///
    /// # Errors
    /// If the thread has ended.
    pub fn run<R: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Replica<M>) -> Result<R, String> + Send + 'static,
    ) -> Result<Pending<R>> {
        let (send, result) = channel();
        let job = Box::new(move |replica: &mut Replica<M>, ready: Result<(), String>| {
            let result = ready.and_then(|()| {
                let _span = info_span!("replica").entered();
                let result = catch_unwind(AssertUnwindSafe(|| act(replica)));
                result.unwrap_or_else(|panic| Err(reason(panic)))
            });
            if let Err(reason) = &result {
                replica.abort(reason);
            }
            // The receiver is gone if another replica failed first.
            let _ = send.send(result);
        });
        self.jobs.send(job).map_err(|_| ended(&self.name))?;
        Ok(Pending { name: self.name.clone(), result })
    }

    pub fn device(&self) -> &Device {
        &self.device
    }
}

/// A panic's message.
pub(super) fn reason(panic: Box<dyn Any + Send>) -> String {
    cause_of_panic(panic_text(&*panic).unwrap_or_default())
}
