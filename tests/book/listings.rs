//! Every listing of Rust code in the book is a part of a file that the tests compile.

use crate::{blocks, common::command, common::finish, pages};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};
use toml::de::{DeTable, DeValue};

/// The lines that mdbook includes for `{{#include path:anchor}}`, and the path.
fn included(page: &Path, line: &str) -> (PathBuf, Vec<String>) {
    let target = line.strip_prefix("{{#include ").and_then(|rest| rest.strip_suffix("}}"));
    let target = target.unwrap_or_else(|| panic!("{}: a listing is not included: {line}", page.display()));
    let (path, anchor) = target.split_once(':').unwrap_or((target, ""));
    let path = page.with_file_name("").join(path);
    let text =
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {}: {e}", page.display(), path.display()));
    let ends = |line: &str, mark: &str| {
        line.trim().trim_start_matches(['/', '#', ' ']) == format!("{mark}: {anchor}")
    };
    let mut lines = text.lines();
    let part: Vec<String> = if anchor.is_empty() {
        lines.map(String::from).collect()
    } else {
        let begins = lines.by_ref().any(|line| ends(line, "ANCHOR"));
        assert!(begins, "{}: {} has no anchor {anchor}", page.display(), path.display());
        lines.take_while(|line| !ends(line, "ANCHOR_END")).map(String::from).collect()
    };
    (path, part.into_iter().filter(|line| !line.contains("ANCHOR")).collect())
}

/// Folders whose Rust files belong to a crate of the workspace or to the course's crate.
const COMPILED: [&str; 7] =
    ["book/code", "examples", "src", "collective", "kernels", "tests/common", "tests/book"];

#[test]
fn every_listing_of_rust_is_compiled() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().expect("the repository");
    let mut listings = 0;
    for page in pages().iter().filter(|page| page.parent().is_some_and(|folder| folder.ends_with("src"))) {
        for (language, lines) in blocks(page) {
            if !language.starts_with("rust") {
                continue;
            }
            assert!(!language.contains("ignore"), "{}: a listing is ignored", page.display());
            for line in &lines {
                let (path, part) = included(page, line);
                let path = path.canonicalize().expect("an existing file");
                let is_compiled = COMPILED.iter().any(|folder| path.starts_with(root.join(folder)));
                assert!(is_compiled, "{}: {} is not compiled", page.display(), path.display());
                assert!(!part.is_empty(), "{}: {line} is empty", page.display());
                listings += 1;
            }
        }
    }
    assert!(listings >= 30, "only {listings} listings were found");
}

#[test]
fn every_program_of_the_course_is_an_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = fs::read_to_string(root.join("examples/Cargo.toml")).expect("the manifest");
    for folder in ["book/code/src/bin", "book/code/migration"] {
        for entry in fs::read_dir(root.join(folder)).expect("the programs") {
            let path = entry.expect("an entry").path();
            let is_program = path.extension().is_some_and(|ending| ending == "rs")
                && fs::read_to_string(&path).expect("a program").contains("fn main()");
            if is_program {
                let path = format!("{folder}/{}", path.file_name().expect("a name").to_string_lossy());
                assert!(
                    manifest.contains(&format!("path = \"../{path}\"")),
                    "{path} is not an example of examples/Cargo.toml"
                );
            }
        }
    }
}

/// Collects the values of a TOML table by their path.
fn values(prefix: &str, table: &DeTable<'_>, found: &mut BTreeMap<String, String>) {
    for (key, value) in table {
        let path = format!("{prefix}{}.", key.get_ref());
        match value.get_ref() {
            DeValue::Table(table) => values(&path, table, found),
            DeValue::Array(parts) => {
                let parts: Vec<_> = parts.iter().map(|part| part.get_ref()).collect();
                found.insert(path, format!("{parts:?}"));
            }
            value => _ = found.insert(path, format!("{value:?}")),
        }
    }
}

#[test]
fn the_manifest_in_the_readme_is_complete() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let blocks = blocks(&root.join("README.md"));
    let (_, readme) = blocks.iter().find(|(language, _)| language == "toml").expect("a manifest");
    let course = fs::read_to_string(root.join("book/code/Cargo.toml")).expect("the course's manifest");
    let [readme, course] = [readme.join("\n"), course].map(|text| {
        let mut found = BTreeMap::new();
        values("", DeTable::parse(&text).expect("TOML").get_ref(), &mut found);
        found.retain(|path, _| {
            let used = ["profile.", "dependencies.anyhow.", "dependencies.burn.", "dependencies.clap."];
            used.iter().any(|start| path.starts_with(start))
        });
        found
    });
    assert!(readme.len() > 30, "{readme:?}");
    assert_eq!(readme, course);
}

#[test]
fn the_differences_between_stages_are_up_to_date() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("book/code/make-diffs");
    finish(command(&script, &["--check"]).spawn().expect("bash")).succeeded();
}
