//! The thread that executes the operations of all streams.

use crate::{
    fault,
    memory::{free_now, of_device},
    settings::setting,
    stream::{self, Operation},
};
use std::{ffi::c_void, thread, time::Duration};

/// Never returns.
pub fn execute() {
    let busy = Duration::from_millis(setting("BUSY").unwrap_or(0));
    loop {
        let (stream, mut operation) = stream::next();
        let mut again = false;
        match &mut operation {
            Operation::Launch(launch) => {
                thread::sleep(busy);
                launch.run();
            }
            // SAFETY: both were checked when the copy was enqueued.
            Operation::Copy { to, from, length } => unsafe {
                fault::doing("a copy");
                std::ptr::copy(of_device(*from) as *const u8, of_device(*to) as *mut u8, *length);
            },
            // SAFETY: as above.
            Operation::Write { to, bytes } => unsafe {
                fault::doing("an upload");
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), of_device(*to) as *mut u8, bytes.len());
            },
            Operation::Free(address) => free_now(*address),
            Operation::Nothing | Operation::Record { .. } | Operation::Wait { .. } => {}
            // SAFETY: the caller keeps both valid until the work has completed.
            Operation::External { poll, argument } => again = unsafe { poll(*argument as *mut c_void) } == 0,
        }
        stream::completed(stream, operation, again);
        if again {
            thread::sleep(Duration::from_micros(200));
        }
    }
}
