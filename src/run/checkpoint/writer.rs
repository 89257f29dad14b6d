//! Writes of checkpoints in the background, while training continues.

use crate::process::lock;
use anyhow::{Context, Result, anyhow};
use std::{
    sync::Mutex,
    thread::{self, JoinHandle},
};

/// Runs one write at a time on a thread of its own.
#[derive(Default)]
pub struct CheckpointWriter(Mutex<Option<JoinHandle<Result<()>>>>);

impl CheckpointWriter {
    /// Waits for the write in progress, and starts `write`.
    ///
    /// # Errors
    /// If the write in progress fails, or no thread can be started.
    pub fn start(&self, write: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        self.wait()?;
        let thread = thread::Builder::new().name("checkpoint".into());
        let thread = thread.spawn(write).context("cannot start a thread for the checkpoint")?;
        *lock(&self.0) = Some(thread);
        Ok(())
    }

    /// Waits for the write in progress.
    ///
    /// # Errors
    /// If it fails.
    pub fn wait(&self) -> Result<()> {
        let running = lock(&self.0).take();
        let panicked = |_| Err(anyhow!("the thread that writes checkpoints panicked"));
        running.map_or(Ok(()), |thread| thread.join().unwrap_or_else(panicked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn writes_do_not_overlap_and_errors_are_reported_once() {
        let writer = CheckpointWriter::default();
        let (send, received) = channel();
        for number in 0..3 {
            let send = send.clone();
            let write = move || {
                send.send((number, "begun"))?;
                thread::yield_now();
                Ok(send.send((number, "ended"))?)
            };
            writer.start(write).expect("no failure");
        }
        writer.start(|| Err(anyhow!("no space"))).expect("earlier writes succeed");
        assert_eq!(writer.start(|| Ok(())).map_err(|error| error.to_string()), Err("no space".into()));
        assert!(writer.wait().is_ok());
        writer.start(|| panic!("as a test")).expect("no failure");
        let error = writer.wait().expect_err("a panic");
        assert_eq!(error.to_string(), "the thread that writes checkpoints panicked");
        let order: Vec<_> = received.try_iter().collect();
        assert_eq!(order, [0, 1, 2].map(|number| [(number, "begun"), (number, "ended")]).concat());
    }
}
