//! Pictures of runs.
