//! Config files, weight files, pictures and models that users bring.

mod config;
mod float_types;
mod models;
mod pictures;
mod weights;

use crate::common::{self, Outcome, command, finish, mnist};
use std::process::Command;

/// Runs `burn-ddp` with these arguments.
fn mnist_ddp(args: &[&str]) -> Outcome {
    finish(command(&mnist(), args).spawn().expect("the program was built"))
}

/// A Python interpreter with these modules: `$BURN_DDP_PYTHON`, the one next to `$TORCHRUN`, or one on the path.
fn python_with(modules: &[&str]) -> Option<String> {
    let asked = std::env::var("BURN_DDP_PYTHON").ok();
    let beside = std::env::var("TORCHRUN")
        .ok()
        .and_then(|path| Some(path.strip_suffix("torchrun")?.to_owned() + "python3"));
    let script = format!("import {}", modules.join(", "));
    let works = |python: &String| {
        let output = Command::new(python).args(["-c", &script]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let found = asked.into_iter().chain(beside).chain(["python3".into(), "python".into()]).find(works);
    if found.is_none() {
        eprintln!("SKIPPED: no Python with {}; BURN_DDP_PYTHON says where one is", modules.join(", "));
    }
    found
}
