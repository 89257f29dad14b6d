//! Every error message in the sources has an entry in the book's chapter of error messages.
//!
//! The test parses the sources: a string after one of [`MAKERS`] is a message.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Code that precedes a message.
const MAKERS: [&str; 11] = [
    "bail!(",
    "anyhow!(",
    "ensure!(",
    "#[error(",
    "context(",
    "Error::Invalid(",
    "Error::io(",
    "Err(format!(",
    "Err(",
    "warn(",
    "eprint_line(",
];

/// Collects all Rust files below a folder.
pub fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// All sources of the repository at `root`.
fn all_sources(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in ["src", "collective/src", "collective/comm/src", "examples", "benches", "kernels/src"] {
        sources(&root.join(folder), &mut found);
    }
    found.retain(|path| !path.ends_with("tests.rs"));
    found
}

/// The string literal at the start of `code`, if there is one.
fn string(code: &str) -> Option<String> {
    let mut characters = code.strip_prefix('"')?.chars().peekable();
    let mut text = String::new();
    loop {
        match characters.next()? {
            '"' => return Some(text),
            '\\' => match characters.next()? {
                '\n' => while characters.next_if(|c| c.is_whitespace()).is_some() {},
                'n' => text.push('\n'),
                other => text.push(other),
            },
            other => text.push(other),
        }
    }
}

/// The messages of a source, without those of its tests.
fn messages(source: &str) -> Vec<String> {
    let source = source.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let mut found = Vec::new();
    for maker in MAKERS {
        for (at, _) in source.match_indices(maker) {
            let mut rest = source[at + maker.len()..].trim_start();
            for before in ["||", "{", "&", "format!("] {
                rest = rest.strip_prefix(before).unwrap_or(rest).trim_start();
            }
            found.extend(string(rest));
        }
    }
    found
}

/// The longest run of words of a message without values and punctuation, which must occur in the chapter.
///
/// `None` if no two words are left.
fn key(message: &str) -> Option<String> {
    let message = message.split([';', '\n']).next().unwrap_or_default();
    let message = message.replace("{{", "\u{1}").replace("}}", "\u{2}");
    let mut runs = vec![String::new()];
    let mut inside = false;
    for character in message.chars() {
        match character {
            '{' => inside = true,
            '}' => inside = false,
            _ if inside => continue,
            '\u{1}' | '\u{2}' | '`' => continue,
            '(' | ')' | ':' | '"' => {}
            other => {
                runs.last_mut().expect("one").push(other);
                continue;
            }
        }
        runs.push(String::new());
    }
    let runs = runs.iter().map(|run| run.trim().trim_end_matches([',', '.']).to_owned());
    runs.filter(|run| run.contains(' ')).max_by_key(String::len)
}

#[test]
fn every_error_is_in_the_chapter_of_error_messages() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let chapter = fs::read_to_string(root.join("book/src/errors.md")).expect("the chapter").replace('`', "");
    let mut keys = BTreeMap::new();
    for path in all_sources(root) {
        let source = fs::read_to_string(&path).expect("a source");
        keys.extend(messages(&source).iter().filter_map(|text| Some((key(text)?, path.clone()))));
    }
    assert!(keys.len() > 200, "only {} messages were found; do sources make them another way?", keys.len());
    let missing: Vec<_> = keys.iter().filter(|(key, _)| !chapter.contains(key.as_str())).collect();
    assert!(missing.is_empty(), "add these to book/src/errors.md, with cause and cure: {missing:#?}");
}

#[test]
fn every_entry_of_the_chapter_is_in_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let chapter = fs::read_to_string(root.join("book/src/errors.md")).expect("the chapter");
    let text = |path: &PathBuf| joined(&fs::read_to_string(path).expect("a source"));
    let all: String = all_sources(root).iter().map(text).collect();
    let rows = chapter.lines().filter_map(|line| line.strip_prefix("| `"));
    let entries = rows.flat_map(|row| row.split(" | ").next().unwrap_or_default().split('`').step_by(2));
    let keys: Vec<String> = entries.filter_map(|entry| key(&entry.replace('…', "{}"))).collect();
    assert!(keys.len() > 200, "only {} entries were found", keys.len());
    let stale: Vec<_> = keys.iter().filter(|key| !all.contains(key.as_str())).collect();
    assert!(
        stale.is_empty(),
        "no source says these any more: take them out of book/src/errors.md: {stale:#?}"
    );
}

/// Joins string literals that continue over several lines.
fn joined(source: &str) -> String {
    let parts = source.split("\\\n").enumerate();
    let parts = parts.map(|(number, part)| if number == 0 { part } else { part.trim_start() });
    parts.collect::<String>().replace('`', "")
}

#[test]
fn a_key_is_the_longest_run_of_words() {
    let of = |message: &str| key(message).unwrap_or_default();
    assert_eq!(of("rank {rank} left the group: {reason}"), "left the group");
    assert_eq!(of("{path} is no run; name a folder that training has left"), "is no run");
    assert_eq!(of("--device {}: there are {{some}} `GPUs` here"), "there are some GPUs here");
    assert_eq!(key("{what}: {reason}"), None);
    let source = "bail!(\n    \"no {x} \\\n     here\"\n); f.with_context(|| format!(\"not \\\"there\\\"\"))";
    assert_eq!(messages(source), ["no {x} here", "not \"there\""]);
}
