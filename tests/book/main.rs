//! Runs every command in the README and the book, unchanged except for smaller data.

mod ch_buckets;
mod ch_checkpoints;
mod ch_data_parallel;
mod ch_failures;
mod ch_gpus;
mod ch_less_traffic;
mod ch_metrics;
mod ch_migration;
mod ch_other_tasks;
mod ch_sync_batch_norm;
mod ch_testing;
mod ch_two_machines;
mod ch_weights;
mod ch_why_distribute;
#[path = "../common/mod.rs"]
mod common;
mod course;
mod errors;
mod links;
mod listings;
mod manifests;
mod packages;
mod readme;
mod security;
use common::{Outcome, command, example, examples, finish, program};
use std::{
    fs, iter,
    os::unix::fs::symlink,
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
};

/// Flags for training runs that do not set them, so that a run takes a second.
///
/// The first two replace those of the course's programs.
const LESS: [(&str, &str); 4] =
    [("--train-limit", "256"), ("--eval-limit", "20"), ("--max-steps", "2"), ("--progress", "plain")];

/// Paths of the README and the book's chapters.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let chapters = fs::read_dir(root.join("book/src")).expect("the book").map(|e| e.expect("entry").path());
    // The folder also contains images.
    let chapters = chapters.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let mut pages: Vec<PathBuf> = chapters.chain([root.join("README.md")]).collect();
    pages.sort();
    pages
}

/// The fenced blocks of a page: the words after the backquotes, and the lines that are not empty.
fn blocks(page: &Path) -> Vec<(String, Vec<String>)> {
    let mut blocks: Vec<(String, Vec<String>)> = Vec::new();
    let mut inside = false;
    for line in fs::read_to_string(page).expect("a page").lines().map(str::trim) {
        match (line.strip_prefix("```"), inside) {
            (Some(language), false) => {
                blocks.push((language.into(), Vec::new()));
                inside = true;
            }
            (Some(_), true) => inside = false,
            (None, true) if !line.is_empty() => blocks.last_mut().expect("open").1.push(line.into()),
            (None, _) => {}
        }
    }
    blocks
}

/// The `sh` blocks of a page, as lines.
fn shell_blocks(page: &Path) -> Vec<Vec<String>> {
    blocks(page).into_iter().filter(|(language, _)| language == "sh").map(|(_, lines)| lines).collect()
}

/// Replaces `cargo run` by the program that it would build, with flags for smaller data.
fn without_cargo(line: &str) -> Option<String> {
    // The test run itself, or builds of existing programs.
    if ["cargo test", "cargo build", "mdbook"].iter().any(|prefix| line.starts_with(prefix)) {
        return None;
    }
    let Some((before, rest)) = line.split_once("cargo run ") else { return Some(launched(line)) };
    let (target, args) = rest.split_once("-- ").unwrap_or((rest, ""));
    let (args, background) = match args.strip_suffix('&') {
        Some(args) => (args, "&"),
        None => (args, ""),
    };
    // The course's programs are `--bin` in the reader's crate and examples here.
    let name = ["--example ", "--bin "].iter().find_map(|kind| target.trim().strip_prefix(kind));
    let exe = name.map_or_else(program, |name| example(name.trim()));
    // Subcommands do not have these flags.
    let subcommand = ["predict", "weights"].iter().any(|name| args.trim_start().starts_with(name));
    let trains = target.contains("mnist_ddp") && !subcommand;
    let smaller: &[(&str, &str)] = match name.map(str::trim) {
        Some("one_device" | "ddp_by_hand" | "ddp" | "batch_norm") => &LESS[..2],
        // The second command resumes the first.
        Some("gan") if args.contains("--epochs") => &[("--epochs", "2")],
        Some("gan") => &[("--epochs", "1")],
        _ if trains => &LESS[1..2],
        _ => &[],
    };
    let args = smaller.iter().fold(args.to_owned(), |args, (flag, value)| with_flag(&args, flag, value));
    let less = LESS.iter().filter(|(flag, _)| trains && !args.contains(flag));
    let less: Vec<String> = less.map(|(flag, value)| format!("{flag} {value}")).collect();
    Some(format!("{before}{} {args} {} {background}", exe.display(), less.join(" ")))
}

/// Sets a flag in a program's arguments, or adds it.
fn with_flag(args: &str, flag: &str, value: &str) -> String {
    match args.split_once(&format!("{flag} ")) {
        Some((before, rest)) => {
            let after = rest.split_once(' ').map_or("", |(_, after)| after);
            format!("{before}{flag} {value} {after}")
        }
        None => format!("{args} {flag} {value}"),
    }
}

/// Adds flags at the end of a line that launches a training, before an `&`.
fn launched(line: &str) -> String {
    let (command, background) = match line.strip_suffix(" &") {
        Some(command) => (command, " &"),
        None => (line, ""),
    };
    let trains = command.starts_with("burn-ddp launch") && command.contains("-- mnist_ddp");
    let less = LESS.iter().filter(|_| trains).map(|(flag, value)| format!(" {flag} {value}"));
    less.fold(command.to_owned(), |line, flag| line + &flag) + background
}

fn run(script: &str, folder: &Path) -> Outcome {
    let mut bash = command(Path::new("bash"), &["-euc", script]);
    // Tests must not depend on the user's cache or the internet. The book assumes that the programs are on the
    // PATH.
    let path = std::env::var("PATH").unwrap_or_default();
    let built = program().parent().map(|folder| folder.display().to_string()).unwrap_or_default();
    bash.env("PATH", format!("{built}:{built}/examples:{path}"));
    bash.current_dir(folder).env("XDG_CACHE_HOME", folder).env("MNIST_MIRROR", "http://127.0.0.1:9/");
    finish(bash.spawn().expect("bash"))
}

/// Runs a block in a folder of its own; returns whether it has a command that is not left out.
fn runs(page: &Path, block: &[String]) -> bool {
    let script: Vec<String> = block.iter().filter_map(|line| without_cargo(line)).collect();
    if script.is_empty() {
        return false;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let book = Path::new(env!("CARGO_MANIFEST_DIR")).join("book");
    symlink(book, folder.path().join("book")).expect("the book's pictures");
    let built = examples().canonicalize().expect("the examples");
    fs::create_dir(folder.path().join("target")).expect("a folder");
    symlink(built, folder.path().join("target/debug")).expect("the programs");
    let outcome = run(&script.join("\n"), folder.path());
    assert_eq!(outcome.code, Some(0), "{}: {block:#?}\n{outcome:#?}", page.display());
    true
}

#[test]
fn every_command_in_the_book_works() {
    let blocks: Vec<(PathBuf, Vec<String>)> = pages()
        .into_iter()
        .flat_map(|page| shell_blocks(&page).into_iter().map(move |block| (page.clone(), block)))
        .collect();
    let next = AtomicUsize::new(0);
    let work =
        || iter::from_fn(|| blocks.get(next.fetch_add(1, Relaxed))).filter(|(p, b)| runs(p, b)).count();
    let ran: usize = thread::scope(|scope| {
        let threads = [0; 3].map(|_| scope.spawn(work));
        threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| resume_unwind(panic))).sum()
    });
    assert!(ran >= 8, "only {ran} blocks were found");
}

#[test]
fn the_summary_names_every_chapter() {
    let summary = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("book/src/SUMMARY.md"))
        .expect("summary");
    for page in pages().iter().filter(|page| page.parent().is_some_and(|p| p.ends_with("book/src"))) {
        let name = page.file_name().and_then(|n| n.to_str()).expect("a name");
        assert!(
            name == "SUMMARY.md" || summary.contains(&format!("({name})")),
            "{name} is not in SUMMARY.md"
        );
    }
}
