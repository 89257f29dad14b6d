//! Every direct dependency has a comment that gives the reason for it.

use std::{fs, path::Path};

/// Folders with a manifest that are not members of the workspace.
const OTHERS: [&str; 4] = [".", "book/code", "collective/comm/fuzz", "vendor/cubecl-llvm"];

/// Line numbers and names of the dependencies without a comment in the line above, and the number of all.
fn without_reason(manifest: &str) -> (Vec<(usize, &str)>, usize) {
    let (mut found, mut count, mut inside, mut explained) = (Vec::new(), 0, false, false);
    for (number, line) in manifest.lines().enumerate() {
        if let Some(section) = line.strip_prefix('[') {
            inside = section.trim_end().ends_with("dependencies]");
        } else if let (true, Some((name, _))) = (inside && !line.starts_with('#'), line.split_once('=')) {
            count += 1;
            if !explained {
                found.push((number + 1, name.trim()));
            }
        }
        // `ANCHOR` marks a listing of the book.
        explained = line.strip_prefix("# ").is_some_and(|comment| !comment.starts_with("ANCHOR"));
    }
    (found, count)
}

#[test]
fn every_dependency_has_a_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |folder: &str| {
        let path = root.join(folder).join("Cargo.toml");
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let workspace = read(".");
    let members = workspace.lines().find_map(|line| line.strip_prefix("members = [")).expect("members");
    let folders: Vec<_> = members.split('"').skip(1).step_by(2).chain(OTHERS).collect();
    let mut count = 0;
    for folder in folders {
        let manifest = read(folder);
        let (missing, all) = without_reason(&manifest);
        assert!(missing.is_empty(), "{folder}/Cargo.toml: no comment above these dependencies: {missing:?}");
        count += all;
    }
    assert!(count > 100, "only {count} dependencies were found");
}

#[test]
fn a_dependency_without_a_comment_is_found() {
    let manifest = "[package]\nname = \"a\"\n[dependencies]\n# Why.\nb = \"1\"\nc.workspace = true\n\n\
                    [dev-dependencies]\n# ANCHOR: d\nd = \"1\"\n[features]\ne = []\n";
    assert_eq!(without_reason(manifest), (vec![(6, "c.workspace"), (10, "d")], 3));
}
