//! The `burn-ddp` command.

use std::process::ExitCode;

burn_ddp::global_allocator!();

fn main() -> ExitCode {
    burn_ddp::cli::main()
}
