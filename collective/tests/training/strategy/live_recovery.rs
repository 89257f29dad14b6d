//! A run whose group fails continues in a new group, with the bits of an undisturbed run.

use super::{LinearModel, Rank, fit, fit_all};
use crate::common::{Kind, options, world};
use burn::optim::GradientsParams;
use burn_ddp_collective::{
    Error, StepOptions,
    local_sgd::LocalSgd,
    strategy::{Callback, Distributed, EpochReport, Join, LiveRecovery, LiveState, Report, StepReport},
};
use std::{
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// Fails before the optimizer step of a step, after the other ranks have made theirs.
struct FailAt(Option<usize>);

impl Distributed for FailAt {
    type State = ();
    fn state(&mut self) {}
    fn join(&mut self, _: Vec<()>) {}
}

impl Callback<LinearModel> for FailAt {
    fn on_gradients(&mut self, step: usize, _: &LinearModel, _: &GradientsParams) -> Result<(), String> {
        if self.0 != Some(step) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(100));
        Err("lost".into())
    }

    fn distributed(&mut self) -> Option<&mut dyn Join> {
        Some(self)
    }
}

#[test]
fn a_run_continues_from_the_rank_that_has_progressed_most() {
    for (batch_norm, ema) in [(false, None), (true, None), (false, Some(0.9))] {
        // Without momentum, because Burn loads an optimizer's state on its default device, which may be a missing GPU.
        let rank = || Rank { batch_norm, ..Rank::default() };
        let undisturbed = fit_all(2, |_| rank(), |_, ddp| ddp.with_ema(ema));
        // Two epochs of five steps.
        for fails_at in [1, 3, 5, 6, 10] {
            let kept: Vec<Arc<LiveRecovery>> = (0..2).map(|_| Arc::default()).collect();
            let failed = fit_all(
                2,
                |_| rank(),
                |number, ddp| {
                    let fails_at = Some(fails_at).filter(|_| number == 1);
                    let ddp = ddp.with_live_recovery(Some(kept[number].clone())).with_ema(ema);
                    ddp.with_callback(FailAt(fails_at))
                },
            );
            assert!(
                matches!(failed[0].failure, Some(Error::PeerLost { rank: 1, .. })),
                "{:?}",
                failed[0].failure
            );
            let states: Vec<LiveState> = kept.iter().map(|kept| kept.take().expect("a state")).collect();
            let steps = |rank: usize| states[rank].snapshot.position.step;
            assert_eq!((steps(0), steps(1)), (fails_at, fails_at - 1));
            let states = Mutex::new(states.into_iter().map(Some).collect::<Vec<_>>());
            let continued = world(Kind::Thread, 2, options(), |group| {
                let own = states.lock().expect("no panic")[group.rank()].take();
                // The rank that is ahead is enough; another rank may be new.
                let own = own.filter(|_| group.rank() == 0);
                let state = LiveState::share(own, &group).expect("a group").expect("a state");
                let reported = state.reports.iter().filter(|it| matches!(it, Report::Step(_))).count();
                assert_eq!(reported, fails_at);
                fit(group, rank(), |ddp| ddp.with_resume(Some(state.snapshot)).with_ema(ema))
            });
            for (undisturbed, continued) in undisturbed.iter().zip(continued) {
                assert_eq!(continued.failure, None);
                let losses =
                    |steps: &[_]| -> Vec<_> { steps.iter().map(|it: &StepReport| it.loss).collect() };
                assert_eq!(losses(&continued.steps), losses(&undisturbed.steps)[fails_at..]);
                let last =
                    |epochs: &[EpochReport]| epochs.last().map(|it| (it.digest.clone(), it.train.clone()));
                assert_eq!(last(&continued.epochs), last(&undisturbed.epochs), "after step {fails_at}");
            }
        }
    }
}

#[test]
fn divided_state_is_refused() {
    let sharded = |options: &mut StepOptions| options.reducer.shard_optimizer = true;
    let local = |options: &mut StepOptions| options.local_sgd = Some(LocalSgd::averaging(2));
    for (set, named) in
        [(&sharded as &(dyn Fn(&mut StepOptions) + Sync), "shard_optimizer"), (&local, "local SGD")]
    {
        let told = fit_all(
            2,
            |_| Rank::default(),
            |_, ddp| super::with(ddp.with_live_recovery(Some(Arc::default())), set),
        );
        for error in super::failures(&told) {
            assert!(error.to_string().contains(named), "{error}");
        }
    }
}
