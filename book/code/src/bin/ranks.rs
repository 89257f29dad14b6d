//! Course, chapter "Processes and ranks": every process prints its rank.

// ANCHOR: program
use burn_ddp::ContextArgs;
use clap::Parser;
use std::process::ExitCode;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    context: ContextArgs,
}

fn main() -> ExitCode {
    burn_ddp::launch_with(&Args::parse().context, |context| {
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
