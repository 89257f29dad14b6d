//! Tracking of runs: TensorBoard's event files and MLflow's servers.

pub mod learner;
mod mlflow;
mod mlflow_server;
mod tensorboard;
