//! The tests that the threat model names exist.

use crate::errors::sources;
use std::{collections::BTreeSet, fs, path::Path};

/// Folders with sources.
const FOLDERS: [&str; 5] = ["src", "tests", "collective", "kernels", "examples"];

/// The names of all functions in Rust files below `root`.
fn functions(root: &Path) -> BTreeSet<String> {
    let mut files = Vec::new();
    FOLDERS.iter().for_each(|folder| sources(&root.join(folder), &mut files));
    let texts = files.iter().map(|file| fs::read_to_string(file).expect("a source file"));
    let names = |text: String| -> Vec<String> {
        let named = text.lines().filter_map(|line| line.trim_start().strip_prefix("fn ")?.split_once('('));
        named.map(|(name, _)| name.to_owned()).collect()
    };
    texts.flat_map(names).collect()
}

#[test]
fn the_tests_of_the_threat_model_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("book/src/security.md")).expect("the page");
    let found = functions(root);
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
