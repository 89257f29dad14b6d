//! Tracking of runs: TensorBoard's event files and MLflow's servers.

#[path = "../common/mod.rs"]
mod common;
mod learner;
mod mlflow;
mod mlflow_server;
mod tensorboard;
