//! `burn-ddp check ordering` detects a collective that does not wait for earlier computation.

use crate::stand_in::Machine;

const CHECK: &str =
    "check ordering --device cuda --transport nccl --ranks 2 --size 64 --milliseconds 2 --rounds 20";

#[test]
fn a_missing_wait_is_detected() {
    // If the device were faster than the host, a missing wait would have no effect.
    let machine = Machine::new(2).with("CUDA_STAND_IN_BUSY", 3);
    let outcome = machine.run(CHECK).succeeded();
    assert!(outcome.stdout.contains("\"wrong\":[]"), "{outcome:#?}");
    let outcome = machine.with("CUDA_STAND_IN_IGNORE_WAITS", "stream").run(CHECK);
    assert!(outcome.code.is_some_and(|code| code != 0), "{outcome:#?}");
    assert!(outcome.stdout.contains("the sum of round"), "{outcome:#?}");
}

#[test]
fn without_events_of_contexts_the_host_waits() {
    let outcome = Machine::new(2).with("CUDA_STAND_IN_NO_CONTEXT_EVENTS", 1).run(CHECK).succeeded();
    assert!(outcome.stdout.contains("\"wrong\":[]"), "{outcome:#?}");
}
