//! Loggers and panic hooks of a program on a GPU, whose failures CubeCL reports in its log only.

use crate::{common::example, stand_in::Machine};

const WARNING: &str = "warning: the program's logger hides failures of the GPU";

#[test]
fn a_logger_of_the_program_stays_in_use() {
    for (when, warns) in [("before", true), ("after", true), ("inspecting", false)] {
        let flags = format!("--device cuda --mode single --logger {when}");
        let outcome = Machine::new(1).start(&example("launch_program"), &flags).succeeded();
        assert!(outcome.stdout.starts_with("log: rank 0\n"), "{when}: {outcome:#?}");
        assert!(outcome.stdout.contains("sum 8"), "{when}: {outcome:#?}");
        assert_eq!(outcome.stderr.matches(WARNING).count(), usize::from(warns), "{when}: {outcome:#?}");
        assert_eq!(outcome.stderr.lines().count(), usize::from(warns), "{when}: {outcome:#?}");
    }
}

#[test]
fn without_a_logger_there_is_no_warning_and_panics_reach_the_program() {
    let flags = "--device cuda --mode single --panic";
    let outcome = Machine::new(1).start(&example("launch_program"), flags);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(101), "hook: a defect\n"), "{outcome:#?}");
}
