//! The tests that the threat model names exist.

use std::{collections::BTreeSet, fs, path::Path};

/// Folders with sources.
const FOLDERS: [&str; 5] = ["src", "tests", "collective", "kernels", "examples"];

/// Adds the names of all functions in the Rust files below `folder`.
fn functions(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            functions(&entry, found);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&entry).expect("a source file");
            let named =
                text.lines().filter_map(|line| line.trim_start().strip_prefix("fn ")?.split_once('('));
            found.extend(named.map(|(name, _)| name.to_owned()));
        }
    }
}

#[test]
fn the_tests_of_the_threat_model_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("book/src/security.md")).expect("the page");
    let mut found = BTreeSet::new();
    FOLDERS.iter().for_each(|folder| functions(&root.join(folder), &mut found));
    let is_test = |code: &&str| {
        code.matches('_').count() >= 2
            && code.chars().all(|letter| letter == '_' || letter.is_ascii_lowercase())
    };
    let code = page.split('`').skip(1).step_by(2);
    let named: Vec<&str> = code.filter(is_test).filter(|code| *code != "init_with_store").collect();
    assert!(named.len() > 20, "only {} tests were found", named.len());
    for name in named {
        assert!(found.contains(name), "book/src/security.md: there is no test `{name}`");
    }
}
