//! Rounds of local SGD: steps of each rank on its own, which end with a synchronisation.

use super::{Snapshot, checkpoints::StepRequests};
use crate::{
    ProcessGroup, ReduceOp, Result,
    ddp::{
        engine::Engine,
        local_sgd::{OuterOptimizer, RoundPhase},
    },
    train::metric::add_totals,
};
use burn::module::Module;

/// The outer optimizer, and what this rank has computed and requested since the last synchronisation.
pub(super) struct LocalRound {
    pub outer: OuterOptimizer,
    /// Sums over this rank's samples.
    pub totals: Vec<f64>,
    pub requests: StepRequests,
}

impl LocalRound {
    /// The first round, with the outer optimizer of the checkpoint of a resumed run; `None` without local SGD.
    ///
    /// Every rank must call it, with equal parameters.
    ///
    /// # Errors
    /// If the group fails, or the checkpoint has no outer optimizer for `model`.
    pub fn first<M: Module>(engine: &Engine, model: M, resumed: Option<&Snapshot>) -> Result<Option<Self>> {
        let Some(mut outer) = engine.outer_optimizer(&model)? else { return Ok(None) };
        if let Some(resumed) = resumed {
            outer.load_record(model, resumed.outer_optimizer()?)?;
        }
        Ok(Some(Self { outer, totals: Vec::new(), requests: StepRequests::default() }))
    }

    /// Counts an optimizer step of this rank with its `requests`. Returns the model for the next step if it is not that of
    /// `model`, and whether the round ends now.
    ///
    /// A round with steps during the exchange continues until a rank has a request.
    ///
    /// # Errors
    /// If the group or a device fails.
    pub fn after_step<M: Module>(
        &mut self,
        model: impl FnOnce() -> M,
        requests: StepRequests,
    ) -> Result<(Option<M>, bool)> {
        self.requests |= requests;
        match self.outer.count_step() {
            RoundPhase::Training => Ok((None, false)),
            RoundPhase::IsOver => Ok((None, true)),
            RoundPhase::Starts => {
                self.outer.start(&model(), self.requests.flags())?;
                Ok((None, false))
            }
            RoundPhase::HasArrived => {
                let (model, sums) = self.outer.finish(model())?;
                let requests = StepRequests::from_sums(&sums);
                self.requests |= requests;
                Ok((Some(model), requests.any()))
            }
        }
    }

    /// Ends a round: synchronises the parameters of `model`, and adds the sums of all ranks to `totals`. Returns the
    /// requests of all ranks.
    ///
    /// # Errors
    /// If the group or a device fails.
    pub fn end<M: Module>(
        &mut self,
        model: M,
        totals: &mut Vec<f64>,
        group: &ProcessGroup,
    ) -> Result<(M, StepRequests)> {
        let mut sums = std::mem::take(&mut self.totals);
        let count = sums.len();
        sums.extend(std::mem::take(&mut self.requests).flags().into_iter().map(f64::from));
        group.all_reduce(&mut sums, ReduceOp::Sum)?;
        let flags: Vec<f32> = sums.split_off(count).into_iter().map(|sum| sum as f32).collect();
        add_totals(totals, &sums);
        Ok((self.outer.synchronize(model)?, StepRequests::from_sums(&flags)))
    }

    /// Adds the state to `snapshot`, on rank 0 with the optimizers of all ranks; `model` has the parameters.
    ///
    /// Every rank must call it.
    ///
    /// # Errors
    /// If the group fails, or a record cannot be packed.
    pub fn save<M: Module>(&self, model: M, snapshot: &mut Snapshot) -> Result<()> {
        let own = snapshot.records.remove("optimizer").unwrap_or_default();
        snapshot.add_local_sgd(self.outer.to_record(model), self.outer.reducer.gather_records(own)?)
    }
}
