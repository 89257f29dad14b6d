//! A replica on its device, in its own thread.
//!
//! The thread lives as long as the replica, so that one thread owns the replica's running statistics. Panics become
//! errors.

use super::exchange::{Exchange, Member};
use crate::{
    Error, ProcessGroup, Result,
    device_error::{cause_of_panic, panic_text},
    parameters::{TensorList, with_values},
    sync_batch_norm::convert_sync_batch_norm,
};
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Device;
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};
use tracing::info_span;

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
    pub fn update(&mut self, parameters: TensorList, group: Option<ProcessGroup>) -> Result<(), String> {
        self.group = group;
        self.module = with_values(self.module.clone(), &parameters.into_iter().collect());
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
    pub fn exchange(&mut self, gradients: GradientsParams) -> Result<GradientsParams, String> {
        let Some(exchange) = &mut self.exchange else { return Ok(gradients) };
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
    pub device: Device,
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
    /// On the CPU it computes with `threads` threads. A member of an exchange reduces gradients with the other replicas.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        model: &M,
        device: &Device,
        name: &str,
        threads: usize,
        member: Option<Member>,
    ) -> Result<Self> {
        let (jobs, queue) = channel::<Job<M>>();
        // Clones share running statistics; a module returned from inference has its own.
        let module = model.valid().train().fork(device);
        let on = device.clone();
        let run = move || {
            // Flex computes in the thread pool of the calling thread.
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).use_current_thread().build();
            let pool = pool.map_err(|error| format!("cannot start {threads} compute threads: {error}"));
            let opened = member.map(|member| member.open(&module)).transpose();
            let (exchange, opened) =
                opened.map_or_else(|error| (None, Err(error.to_string())), |it| (it, Ok(())));
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
}

/// A panic's message.
pub(super) fn reason(panic: Box<dyn Any + Send>) -> String {
    cause_of_panic(panic_text(&*panic).unwrap_or_default())
}
