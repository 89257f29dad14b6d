//! State of a run between two optimizer steps, which can be saved, loaded and broadcast.

use crate::{Error, ProcessGroup, Result, data::loader::EpochProgress, gradient::Reducer};
use burn::optim::{OptimizerRecord, lr_scheduler::LrSchedulerRecord};
use burn::store::{ModuleRecord, RecordError};
use burn::tensor::Bytes;
use burn::train::{
    Learner, LearnerModel, LearningCheckpointer,
    checkpoint::{
        AsyncCheckpointer, Checkpoint, Checkpointer, CheckpointerError, CheckpointingAction,
        CheckpointingStrategy,
    },
    metric::store::EventStoreClient,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{Receiver, Sender, channel},
};

/// Position of a run between two optimizer steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// Number of optimizer steps of the whole run so far.
    pub step: usize,
    /// Epoch in progress, from 1; after an epoch's evaluation, the next one.
    pub epoch: usize,
    /// Number of batches of each rank in `epoch`, at the world size at which they were trained.
    pub batches: usize,
    /// Number of samples of all ranks in `epoch`, from the start of its global order.
    pub samples: usize,
    /// Sums over these samples, as [`StepOutput::totals`](crate::train::metric::StepOutput::totals) orders them.
    #[serde(deserialize_with = "crate::train::metric::numbers_or_nan")]
    pub totals: Vec<f64>,
    /// Training time of `epoch` so far in seconds.
    pub seconds: f64,
    /// Whether these parameters have been evaluated.
    pub evaluated: bool,
    /// Loss scale of f16, and the number of steps since it last changed.
    #[serde(default)]
    pub loss_scale: Option<(f32, u32)>,
    /// Number of steps of `epoch` that were skipped because gradients overflowed f16.
    #[serde(default)]
    pub skipped: usize,
}

impl Position {
    /// Position at the start of a run.
    pub fn start() -> Self {
        Self { epoch: 1, ..Self::default() }
    }

    /// Finished part of the epoch.
    pub fn done(&self) -> EpochProgress {
        EpochProgress { batches: self.batches, samples: self.samples }
    }
}

/// State of a run between two optimizer steps.
///
/// It is equal on every rank, so that one rank can store it for all.
///
/// The error feedback of a compression hook and the state of callbacks are not included and start empty after a resume.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Position of the run.
    pub position: Position,
    /// Burn records by name.
    ///
    /// - `model`: parameters and buffers.
    /// - `optimizer`: the optimizer's state; with local SGD, after [`share`](Self::share), that of the rank.
    /// - `scheduler`: the learning-rate scheduler.
    /// - `ema`: the module with the moving average of the weights, of a run with
    ///   [`with_ema`](super::ParallelStrategy::with_ema).
    /// - `outer-optimizer`, and `optimizer-1`, `optimizer-2` and so on: the state of local SGD, of a run with it.
    pub records: BTreeMap<String, Vec<u8>>,
}

/// Name of the record of the outer optimizer of local SGD.
const OUTER: &str = "outer-optimizer";

/// Name of the record of a rank's optimizer.
fn optimizer_of(rank: usize) -> String {
    if rank == 0 { "optimizer".into() } else { format!("optimizer-{rank}") }
}

/// The records of a learner.
pub(super) struct Records {
    pub model: ModuleRecord,
    pub optimizer: OptimizerRecord,
    scheduler: LrSchedulerRecord,
}

impl Records {
    /// The records of `learner`, which burn-train passes to checkpointers only.
    pub fn of<M: LearnerModel>(learner: &Learner<M>, store: &EventStoreClient, epoch: usize) -> Result<Self> {
        // Applies the last update of BatchNorm's running statistics.
        let _ = learner.model().valid();
        let (to_model, model) = RecordReceiver::start();
        let (to_optimizer, optimizer) = RecordReceiver::start();
        let (to_scheduler, scheduler) = RecordReceiver::start();
        LearningCheckpointer::<M>::new(to_model, to_optimizer, to_scheduler, Box::new(SaveAlways))
            .checkpoint(learner, epoch, store);
        let lost = |_| Error::Invalid("a requested checkpoint was not delivered".into());
        Ok(Self {
            model: model.recv().map_err(lost)?,
            optimizer: optimizer.recv().map_err(lost)?,
            scheduler: scheduler.recv().map_err(lost)?,
        })
    }
}

impl Snapshot {
    /// Takes a snapshot; `average` is the module with the moving average of the weights.
    pub(super) fn take(records: Records, position: Position, average: Option<ModuleRecord>) -> Result<Self> {
        let mut records = vec![
            ("model", Self::pack("model", records.model.into_bytes())?),
            ("optimizer", Self::pack("optimizer's state", records.optimizer.into_bytes())?),
            ("scheduler", Self::pack("learning-rate scheduler", records.scheduler.into_bytes())?),
        ];
        if let Some(average) = average {
            records.push(("ema", Self::pack("moving average of the weights", average.into_bytes())?));
        }
        let records = records.into_iter().map(|(name, record)| (name.to_owned(), record)).collect();
        Ok(Self { position, records })
    }

    /// The bytes of a record.
    fn pack(what: &str, bytes: Result<Bytes, RecordError>) -> Result<Vec<u8>> {
        let failed =
            |error: RecordError| Error::Io { what: format!("packing the {what}"), reason: error.to_string() };
        bytes.map(|bytes| bytes.to_vec()).map_err(failed)
    }

    /// Reads a record; `what` is its name in errors.
    fn record<R>(&self, name: &str, what: &str, read: fn(Bytes) -> Result<R, RecordError>) -> Result<R> {
        let record = self.records.get(name).ok_or_else(|| misfit(what, "it has none"))?;
        read(Bytes::from_bytes_vec(record.clone())).map_err(|error| misfit(what, &error.to_string()))
    }

    /// The outer optimizer's state.
    ///
    /// # Errors
    /// If the snapshot was taken without local SGD.
    pub(super) fn outer_optimizer(&self) -> Result<ModuleRecord> {
        self.record(OUTER, "outer optimizer", ModuleRecord::from_bytes)
    }

    /// Adds the state of local SGD: that of the outer optimizer, and the records of all ranks' optimizers.
    pub(super) fn add_local_sgd(&mut self, outer: ModuleRecord, optimizers: Vec<Vec<u8>>) -> Result<()> {
        self.records.insert(OUTER.into(), Self::pack("outer optimizer's state", outer.into_bytes())?);
        let optimizers = optimizers.into_iter().enumerate();
        self.records.extend(optimizers.map(|(rank, record)| (optimizer_of(rank), record)));
        Ok(())
    }

    /// Loads the snapshot's model and learning-rate scheduler into `learner`.
    pub(super) fn apply<M: LearnerModel>(&self, learner: &mut Learner<M>) -> Result<()> {
        let model = self.record("model", "model", ModuleRecord::from_bytes)?;
        let loaded = learner.model().try_load_record(model.clone());
        loaded.map_err(|error| misfit("model", &error.to_string()))?;
        learner.load_model(model);
        learner.load_scheduler(self.record("scheduler", "scheduler", LrSchedulerRecord::from_bytes)?);
        Ok(())
    }

    /// Loads the optimizer's state, or this rank's shard of it, into `learner`.
    pub(super) fn apply_optimizer<M: LearnerModel>(
        &self,
        learner: &mut Learner<M>,
        reducer: &Reducer,
    ) -> Result<()> {
        let optimizer = self.record("optimizer", "optimizer state", OptimizerRecord::from_bytes)?;
        let optimizer = reducer.keep_shard(optimizer)?;
        // Burn creates it on the default device first, and panics if that device is missing.
        catch_unwind(AssertUnwindSafe(|| learner.load_optim(optimizer))).map_err(|_| {
            let reason = "Burn could not load it on its default device; name another with BURN_DEVICE";
            misfit("optimizer state", reason)
        })
    }

    /// Broadcasts rank 0's snapshot. Every rank must call it; the other ranks' snapshots are ignored.
    ///
    /// # Errors
    /// If the group fails.
    pub fn share(own: Option<Self>, group: &ProcessGroup) -> Result<Option<Self>> {
        Self::share_from(own, group, 0)
    }

    /// Broadcasts the snapshot of rank `root`.
    ///
    /// With local SGD, each rank gets the optimizer of the rank with its number. At a larger world size, further ranks get
    /// those of the first ranks again.
    ///
    /// # Errors
    /// If the group fails.
    pub(super) fn share_from(own: Option<Self>, group: &ProcessGroup, root: usize) -> Result<Option<Self>> {
        if group.world_size() == 1 {
            return Ok(own);
        }
        let mut own = own.filter(|_| group.rank() == root);
        let header = own.as_ref().map(|own| {
            let lengths = own.records.iter().map(|(name, record)| (name.clone(), record.len()));
            (own.position.clone(), lengths.collect::<BTreeMap<_, _>>())
        });
        let Some((position, lengths)) = group.broadcast_object(&header, root)? else { return Ok(None) };
        let optimizers =
            (1..).map(optimizer_of).take_while(|name| lengths.contains_key(name)).collect::<Vec<_>>();
        let of_rank = optimizer_of(group.rank() % (1 + optimizers.len()));
        let mut shared = Self { position, records: BTreeMap::new() };
        for (name, length) in lengths {
            let mut record = own.as_mut().and_then(|own| own.records.remove(&name)).unwrap_or_default();
            record.resize(length, 0);
            if length > 0 {
                group.broadcast(&mut record, root)?;
            }
            // `optimizer`, which comes first, is replaced by that of the rank.
            if name == of_rank {
                shared.records.insert(optimizer_of(0), record);
            } else if !optimizers.contains(&name) {
                shared.records.insert(name, record);
            }
        }
        Ok(Some(shared))
    }
}

fn misfit(what: &str, reason: &str) -> Error {
    Error::Invalid(format!("the checkpoint's {what} does not fit this run: {}", plain_shapes(reason)))
}

/// Replaces `Shape { dims: [128, 26] }` by `[128, 26]` in Burn's message.
fn plain_shapes(message: &str) -> String {
    let mut parts = message.split("Shape { dims: ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + &part.replacen(" }", "", 1))
}

/// A checkpointer that sends a record through a channel.
struct RecordReceiver<R>(Sender<R>);

impl<R: Checkpoint> RecordReceiver<R> {
    fn start() -> (AsyncCheckpointer<R>, Receiver<R>) {
        let (to, records) = channel();
        (AsyncCheckpointer::new(RecordReceiver(to)), records)
    }
}

impl<R: Checkpoint> Checkpointer<R> for RecordReceiver<R> {
    fn save(&self, _epoch: usize, record: R) -> Result<(), CheckpointerError> {
        self.0.send(record).map_err(|error| CheckpointerError::Unknown(error.to_string()))
    }

    fn delete(&self, _epoch: usize) -> Result<(), CheckpointerError> {
        Ok(())
    }

    fn restore(&self, _epoch: usize) -> Result<R, CheckpointerError> {
        Err(CheckpointerError::Unknown("nothing is kept here".into()))
    }
}

/// A checkpointing strategy that saves at every request.
struct SaveAlways;

impl CheckpointingStrategy for SaveAlways {
    fn checkpointing(&mut self, _epoch: usize, _store: &EventStoreClient) -> Vec<CheckpointingAction> {
        vec![CheckpointingAction::Save]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::{module::Module, nn::LinearConfig, tensor::Device};

    #[test]
    fn shapes_in_burns_message_are_plain() {
        let layer = |outputs| LinearConfig::new(26, outputs).init(&Device::flex());
        let misfit = layer(128).try_load_record(layer(64).into_record()).expect_err("another shape");
        let message = plain_shapes(&misfit.to_string());
        assert!(message.contains("expected [26, 128] but record has [26, 64]"), "{message}");
        assert!(message.contains("expected [128] but record has [64]"), "{message}");
    }
}
