//! Every command in the README and the book is run, as it stands there, on less data.

mod common;
#[path = "book/errors.rs"]
mod errors;
#[path = "book/links.rs"]
mod links;
use common::{Outcome, command, example, finish, program};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Given to every training run that does not choose them itself, so that it takes a second.
const LESS: [(&str, &str); 4] =
    [("--train-limit", "256"), ("--eval-limit", "20"), ("--max-steps", "2"), ("--progress", "plain")];

/// The README and the book's chapters.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let chapters = fs::read_dir(root.join("book/src")).expect("the book").map(|e| e.expect("entry").path());
    // Pictures are there, too.
    let chapters = chapters.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let mut pages: Vec<PathBuf> = chapters.chain([root.join("README.md")]).collect();
    pages.sort();
    pages
}

/// The `sh` blocks of a page, each as its lines.
fn shell_blocks(page: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(page).expect("a page");
    let mut blocks: Vec<Vec<String>> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match line.trim() {
            "```sh" => {
                inside = true;
                blocks.push(Vec::new());
            }
            "```" => inside = false,
            command if inside && !command.is_empty() => blocks.last_mut().expect("open").push(command.into()),
            _ => {}
        }
    }
    blocks
}

/// The command without cargo: the program it would build, and run on less data.
fn without_cargo(line: &str) -> Option<String> {
    // These are what is running now, or only build what already is.
    if ["cargo test", "cargo build", "mdbook"].iter().any(|prefix| line.starts_with(prefix)) {
        return None;
    }
    let Some((before, rest)) = line.split_once("cargo run ") else { return Some(launched(line)) };
    let (target, args) = rest.split_once("-- ").unwrap_or((rest, ""));
    let (args, background) = match args.strip_suffix('&') {
        Some(args) => (args, "&"),
        None => (args, ""),
    };
    let exe = match target.trim().strip_prefix("--example ") {
        Some(name) => example(name.trim()),
        None => program(),
    };
    // Subcommands and the other examples have no such flags.
    let subcommand = ["predict", "weights", "bench"].iter().any(|name| args.trim_start().starts_with(name));
    let trains = target.contains("mnist_ddp") && !subcommand;
    let less = LESS
        .iter()
        .filter(|(flag, _)| trains && !args.contains(flag))
        .map(|(flag, value)| format!("{flag} {value}"));
    Some(format!("{before}{} {args} {} {background}", exe.display(), less.collect::<Vec<_>>().join(" ")))
}

/// A launched training takes its flags at the end of the line, before an `&`.
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
    // No page may depend on what is in the reader's cache, or on the internet.
    // And the chapters that launch programs by name have told the reader to put them on the PATH.
    let path = std::env::var("PATH").unwrap_or_default();
    let built = program().parent().map(|folder| folder.display().to_string()).unwrap_or_default();
    bash.env("PATH", format!("{built}:{built}/examples:{path}"));
    bash.current_dir(folder).env("XDG_CACHE_HOME", folder).env("MNIST_MIRROR", "http://127.0.0.1:9/");
    finish(bash.spawn().expect("bash"))
}

#[test]
fn every_command_in_the_book_works() {
    let mut ran = 0;
    for page in pages() {
        for block in shell_blocks(&page) {
            let script: Vec<String> = block.iter().filter_map(|line| without_cargo(line)).collect();
            if script.is_empty() {
                continue;
            }
            let folder = tempfile::tempdir().expect("temporary folder");
            let book = Path::new(env!("CARGO_MANIFEST_DIR")).join("book");
            std::os::unix::fs::symlink(book, folder.path().join("book")).expect("the book's pictures");
            let outcome = run(&script.join("\n"), folder.path());
            assert_eq!(outcome.code, Some(0), "{}: {block:#?}\n{outcome:#?}", page.display());
            ran += 1;
        }
    }
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
