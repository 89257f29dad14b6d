//! Every direct dependency has a comment that gives the reason for it, and brings no second version of a crate.

use super::packages::cargo;
use std::{fs, path::Path};

/// Folders with a manifest that are not members of the workspace.
const OTHERS: [&str; 6] =
    [".", "book/code", "collective/comm/fuzz", "collective/comm/models", "fuzz", "vendor/cubecl-llvm"];

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

/// The versions in `cargo tree --duplicates` on which only members of the workspace depend.
fn duplicates_of_members(tree: &str) -> Vec<&str> {
    // A block is a version and the packages that depend on it. Members have a path.
    let blocks = tree.split("\n\n").filter_map(|block| block.trim().split_once('\n'));
    blocks
        .filter(|(_, users)| users.lines().all(|user| user.contains(" (/")))
        .map(|(version, _)| version)
        .collect()
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

/// Others come from Burn, CubeCL and their dependencies, and cannot be removed here.
#[test]
fn no_second_version_of_a_crate_is_for_this_workspace_alone() {
    let edges = ["--edges", "normal,build,dev", "--prefix", "none", "--depth", "1", "--no-dedupe"];
    let tree = cargo(&[&["tree", "--locked", "--workspace", "--duplicates"], &edges[..]].concat());
    assert_eq!(duplicates_of_members(&tree), [""; 0], "versions that other packages do not need");
    let tree = "a v1.0.0\nb v1.0.0 (/b)\nc v1.0.0\n\na v2.0.0\nb v1.0.0 (/b)\n";
    assert_eq!(duplicates_of_members(tree), ["a v2.0.0"]);
}
