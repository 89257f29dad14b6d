//! The thread of a communicator of the NCCL stand-in: joining, then one operation after the other.
//!
//! Ranks exchange data through files in a shared folder.

use super::{Comm, IN_PROGRESS, INTERNAL_ERROR, INVALID_USAGE, Operation, REMOTE_ERROR};
use crate::{numbers, settings::setting};
use std::ffi::c_int;
use std::fs;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

impl Comm {
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let hidden = self.folder.join(format!(".{name}-{}", self.rank));
        // The folder is removed when the first rank leaves.
        let _ = fs::write(&hidden, bytes).and_then(|()| fs::rename(&hidden, self.folder.join(name)));
    }

    /// Waits without a limit until the file exists, or until aborted.
    pub fn take(&self, name: &str) -> Option<Vec<u8>> {
        loop {
            if let Ok(bytes) = fs::read(self.folder.join(name)) {
                return Some(bytes);
            }
            if self.aborted.load(SeqCst) {
                return None;
            }
            thread::sleep(Duration::from_micros(300));
        }
    }

    /// Waits until the operations in progress have completed or were aborted.
    pub fn settle(&self) -> c_int {
        loop {
            match self.state.load(SeqCst) {
                IN_PROGRESS if self.aborted.load(SeqCst) => return INTERNAL_ERROR,
                IN_PROGRESS => thread::sleep(Duration::from_micros(100)),
                state => return state,
            }
        }
    }

    pub fn hang(&self) {
        while !self.aborted.load(SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn join(&self) -> bool {
        if let Some(ms) = setting("slow_init", self.rank) {
            thread::sleep(Duration::from_millis(ms));
        }
        if setting("no_init", self.rank).is_some() {
            self.hang();
            return false;
        }
        let device = self.device.map_or_else(String::new, |device| device.to_string());
        self.put(&format!("join-{}", self.rank), device.as_bytes());
        let joined = (0..self.size).map(|rank| self.take(&format!("join-{rank}")));
        let Some(devices) = joined.collect::<Option<Vec<_>>>() else { return false };
        let mine = |theirs: &&Vec<u8>| !theirs.is_empty() && ***theirs == *device.as_bytes();
        if devices.iter().filter(mine).count() > 1 {
            eprintln!("NCCL stand-in: rank {} and another rank use device {device}", self.rank);
            self.state.store(INVALID_USAGE, SeqCst);
            return false;
        }
        true
    }

    /// Waits until all ranks have come to this point; false if aborted.
    pub fn meet(&self, point: &str) -> bool {
        self.put(&format!("{point}-{}", self.rank), b"here");
        (0..self.size).all(|rank| self.take(&format!("{point}-{rank}")).is_some())
    }

    /// Executes an operation; `Err(None)` if it was aborted or hangs.
    pub fn perform(&self, operation: &Operation) -> Result<(), Option<c_int>> {
        let sequence = self.sequence.fetch_add(1, SeqCst) + 1;
        let at = |name: &str| setting(name, self.rank) == Some(sequence);
        if let Some(ms) = setting("busy", self.rank) {
            thread::sleep(Duration::from_millis(ms));
        }
        if at("die_at") {
            // As with kill -9.
            std::process::abort();
        }
        if at("hang_at") {
            self.hang();
        }
        if at("error_at") {
            return Err(Some(INTERNAL_ERROR));
        }
        if at("remote_error_at") {
            return Err(Some(REMOTE_ERROR));
        }
        if self.aborted.load(SeqCst) {
            return Err(None);
        }
        self.collective(operation, sequence)
    }

    fn collective(&self, operation: &Operation, sequence: u64) -> Result<(), Option<c_int>> {
        let Operation { name, count, dtype, op, root, .. } = operation;
        let size = self.size as usize;
        let inputs = if *name == "ReduceScatter" { count * size } else { *count };
        let mut mine = format!("{name} {count} {dtype} {op} {root}\n").into_bytes();
        let head = mine.len();
        mine.extend_from_slice(unsafe { operation.input(inputs) });
        self.put(&format!("{sequence}-{}", self.rank), &mine);
        let mut all = Vec::new();
        for rank in 0..size {
            let theirs = self.take(&format!("{sequence}-{rank}")).ok_or(None)?;
            if theirs.get(..head) != Some(&mine[..head]) || theirs.len() != mine.len() {
                return Err(Some(INTERNAL_ERROR));
            }
            all.push(theirs[head..].to_vec());
        }
        let here = *root == self.rank;
        match *name {
            "AllGather" => unsafe { operation.output(&all.concat()) },
            "Broadcast" => unsafe { operation.output(&all[*root as usize]) },
            "Reduce" if !here => {}
            "AllReduce" | "Reduce" => unsafe { operation.output(&numbers::reduce(&all, *dtype, *op)) },
            "ReduceScatter" => {
                let part = operation.bytes(*count);
                let whole = numbers::reduce(&all, *dtype, *op);
                let from = part * self.rank as usize;
                unsafe { operation.output(&whole[from..from + part]) };
            }
            other => panic!("no operation {other}"),
        }
        // A rank that is two operations ahead has read the earlier files.
        if sequence > 2 {
            let _ = fs::remove_file(self.folder.join(format!("{}-{}", sequence - 2, self.rank)));
        }
        Ok(())
    }
}

impl Operation {
    fn bytes(&self, count: usize) -> usize {
        count * numbers::size(self.dtype)
    }

    unsafe fn input(&self, count: usize) -> &[u8] {
        unsafe { std::slice::from_raw_parts(self.send as *const u8, self.bytes(count)) }
    }

    unsafe fn output(&self, bytes: &[u8]) {
        unsafe { std::ptr::copy(bytes.as_ptr(), self.recv as *mut u8, bytes.len()) };
    }
}
