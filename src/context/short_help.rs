//! Which flags of this library `-h` lists.

use clap::Arg;

/// Headings of the flags of this library in the help.
const HEADINGS: [&str; 8] =
    ["World", "Data", "Model", "Training", "Gradients", "Checkpoints", "Output", "Configuration"];

/// Flags of this library that `-h` lists; `--help` lists all.
const COMMON: [&str; 9] =
    ["mode", "device", "nproc_per_node", "epochs", "batch_size", "lr", "resume", "run_dir", "config"];

/// Hides a flag of this library that is not common from `-h`.
pub(crate) fn shown_in_short_help(arg: Arg) -> Arg {
    let is_ours = arg.get_help_heading().is_some_and(|heading| HEADINGS.contains(&heading));
    let is_rare = is_ours && !COMMON.contains(&arg.get_id().as_str());
    if is_rare { arg.hide_short_help(true) } else { arg }
}
