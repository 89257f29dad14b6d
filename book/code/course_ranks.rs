//! Course, chapter "Processes and ranks": every process says which rank it is.

use std::process::ExitCode;

// ANCHOR: program
fn main() -> ExitCode {
    burn_ddp::launch(|context| {
        let environment = context.environment();
        println!(
            "rank {} of {}, local rank {} of {}, device {}, process {}",
            context.rank(),
            context.world_size(),
            environment.local_rank,
            environment.local_world_size,
            context.local_device(),
            std::process::id()
        );
        Ok(())
    })
}
// ANCHOR_END: program
