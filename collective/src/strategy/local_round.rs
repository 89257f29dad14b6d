//! Rounds of local SGD: steps of each rank on its own, which end with a synchronisation.

use super::{
    Snapshot, TrainedOutput, ValidOutput,
    launched::StepRequests,
    run::{Run, Stop},
};
use crate::{
    ReduceOp, Result,
    local_sgd::OuterOptimizer,
    metric::{StepOutput, add_totals},
};
use burn::module::Module;
use burn::train::LearnerModel;

/// The outer optimizer, and what this rank has computed and requested since the last synchronisation.
pub(super) struct LocalRound {
    pub outer: OuterOptimizer,
    /// Sums over this rank's samples.
    pub totals: Vec<f64>,
    pub requests: StepRequests,
}

/// State of local SGD in a [`Snapshot`], besides that of rank 0's optimizer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LocalSgdState {
    /// Record of the outer optimizer.
    pub outer: Vec<u8>,
    /// Optimizer records of ranks 1, 2 and so on.
    pub optimizers: Vec<Vec<u8>>,
}

impl LocalRound {
    /// Collects the state on rank 0; `own` is the record of this rank's optimizer, and `model` has the parameters.
    ///
    /// Every rank must call it.
    ///
    /// # Errors
    /// If the group fails, or a record cannot be packed.
    pub fn collect<M: Module>(&self, model: M, own: Vec<u8>) -> Result<LocalSgdState> {
        let mut optimizers = self.outer.gather_records(own)?;
        optimizers.remove(0);
        let outer = Snapshot::pack("outer optimizer's state", self.outer.to_record(model).into_bytes())?;
        Ok(LocalSgdState { outer, optimizers })
    }
}

impl<M: LearnerModel> Run<'_, M>
where
    TrainedOutput<M>: StepOutput,
    ValidOutput<M>: StepOutput,
{
    /// The first round, with the outer optimizer of the checkpoint of a resumed run; `None` without local SGD.
    ///
    /// Every rank must call it, with equal parameters.
    pub(super) fn first_round(&self) -> Result<Option<LocalRound>, Stop> {
        let Some(mut outer) = self.engine.outer_optimizer(&self.learner.model())? else { return Ok(None) };
        if let Some(resumed) = &self.settings.resume {
            outer.load_record(self.learner.model(), resumed.outer_optimizer()?)?;
        }
        Ok(Some(LocalRound { outer, totals: Vec::new(), requests: StepRequests::default() }))
    }

    /// Ends a round: synchronises the parameters and sums the totals. Returns the requests of all ranks.
    pub(super) fn end_round(&mut self) -> Result<StepRequests, Stop> {
        let Some(round) = &mut self.round else { return Ok(StepRequests::default()) };
        let group = &self.settings.group;
        let flags = std::mem::take(&mut round.requests).flags();
        let mut sums = std::mem::take(&mut round.totals);
        let totals = sums.len();
        sums.extend(flags.iter().copied().map(f64::from));
        group.all_reduce(&mut sums, ReduceOp::Sum)?;
        let flags: Vec<f32> = sums.split_off(totals).into_iter().map(|sum| sum as f32).collect();
        add_totals(&mut self.position.totals, &sums);
        let model = round.outer.synchronize(self.learner.model())?;
        self.learner.load_model(model.into_record());
        Ok(StepRequests::from_sums(&flags))
    }
}
