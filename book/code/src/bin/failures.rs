//! Course, chapter "Clusters and failures": rank 1 fails, and the other ranks report the error.

use burn_ddp::{Context, ContextArgs, Error, ReduceOp};
use clap::{Parser, ValueEnum};
use std::{
    process::{Command, ExitCode, exit, id},
    thread,
    time::{Duration, Instant},
};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    context: ContextArgs,
    /// Failure of rank 1 in step 20
    #[arg(long, value_enum)]
    fault: Option<Fault>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Fault {
    /// Exits with code 3
    Exit,
    /// Is killed by SIGKILL
    Kill,
    /// Is stopped by SIGSTOP
    Stop,
    /// Computes for 10 seconds
    Slow,
    /// Gives all-reduce another number of elements
    Differ,
    /// Leaves out the remaining steps
    Finish,
}

// ANCHOR: errors
fn train(context: &Context, fault: Option<Fault>) -> anyhow::Result<()> {
    for step in 1..=40 {
        let mut gradient = vec![1.0_f32; 1000];
        match fault.filter(|_| context.rank() == 1 && step == 20) {
            Some(Fault::Exit) => exit(3),
            Some(Fault::Kill) => signal("-KILL")?,
            Some(Fault::Stop) => signal("-STOP")?,
            Some(Fault::Slow) => thread::sleep(Duration::from_secs(10)),
            Some(Fault::Differ) => gradient.push(1.0),
            Some(Fault::Finish) => return Ok(()),
            None => {}
        }
        let began = Instant::now();
        let Err(error) = context.group().all_reduce(&mut gradient, ReduceOp::Mean)
        else {
            continue;
        };
        let kind = match error.cause() {
            Error::PeerLost { rank, .. } => format!("rank {rank} is lost"),
            Error::Timeout { .. } => "the time limit has passed".into(),
            Error::Mismatch { rank_a, rank_b, .. } => {
                format!("ranks {rank_a} and {rank_b} differ")
            }
            _ => "another error".into(),
        };
        let waited = began.elapsed().as_secs_f64();
        println!(
            "rank {}, step {step}, after {waited:.2} s: {kind}: {error}",
            context.rank()
        );
        return Err(error.into());
    }
    Ok(())
}
// ANCHOR_END: errors

/// Sends a signal to this process.
fn signal(name: &str) -> std::io::Result<()> {
    Command::new("kill").args([name, &id().to_string()]).status()?;
    Ok(())
}

fn main() -> ExitCode {
    let args = Args::parse();
    burn_ddp::launch_with(&args.context, |context| train(context, args.fault))
}
