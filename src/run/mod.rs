//! Files of a run: configuration, tables, checkpoints, TensorBoard events, MLflow tracking, report and model.

pub mod checkpoint;
mod classification;
mod folder;
mod log;
mod loop_state;
pub mod misclassified;
pub mod mlflow;
mod output;
pub mod png;
pub mod report;
pub mod tables;
pub mod tensor_io;
pub mod tensorboard;
mod tracker;
pub mod weights;

pub use classification::{Confusion, TopK};
pub use folder::{RunFiles, RunFolder, Summary, recorded, timestamp};
pub use log::Evaluation;
pub use loop_state::LoopState;
pub(crate) use output::Output;
pub use tables::EvaluatedSet;
pub use tracker::{MetricsLogger, ScalarSink, Status};
pub use weights::ExportArgs;
