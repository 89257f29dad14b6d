//! Progress of CUDA kernel compilation, printed every ten seconds until the first step is done.
//!
//! Compilation takes minutes with an empty kernel cache.

use crate::{
    device::{LocalDevice, binary_size, kernel_cache},
    process::{console::Console, lock},
};
use collective::strategy::{Observer, StepReport};
use std::{
    path::Path,
    sync::{Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

const INTERVAL: Duration = Duration::from_secs(10);

/// Reports kernel compilation until the first step is done or it is dropped.
pub struct KernelProgress(Mutex<Option<mpsc::Sender<()>>>);

impl KernelProgress {
    /// Starts the reports; returns `None` if the device compiles no kernels or the console is hidden.
    pub fn start(device: LocalDevice, console: Console) -> Option<Self> {
        let folder = kernel_cache::folder()?;
        if !device.compiles_kernels() || !console.is_visible() {
            return None;
        }
        let before = kernel_cache::size(&folder).unwrap_or(0);
        let kept = match before {
            0 => "empty; the first run compiles kernels, which takes minutes".to_string(),
            bytes => binary_size(bytes),
        };
        console.print(&format!("kernels   {}: {kept}", folder.display()));
        let (end, ended) = mpsc::channel();
        let watch = move || report(console, &folder, before, &ended);
        thread::Builder::new().name("kernel-progress".into()).spawn(watch).ok()?;
        Some(KernelProgress(Mutex::new(Some(end))))
    }
}

fn report(console: Console, folder: &Path, before: u64, ended: &mpsc::Receiver<()>) {
    let began = Instant::now();
    while ended.recv_timeout(INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
        let new = kernel_cache::size(folder).unwrap_or(before).saturating_sub(before);
        let (seconds, new) = (began.elapsed().as_secs(), binary_size(new));
        console.print(&format!(
            "compiling kernels for the first step: {seconds} s, {new} new in the kernel cache"
        ));
    }
}

impl Observer for KernelProgress {
    fn step_done(&self, _report: &StepReport) {
        lock(&self.0).take();
    }
}
