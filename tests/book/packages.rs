//! The packages of the published crates: versions, metadata and files.

use serde_json::Value;
use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The published crates.
const PUBLISHED: [&str; 4] = ["burn-ddp", "burn-ddp-collective", "burn-ddp-comm", "burn-ddp-kernels"];

/// Largest size of a package in bytes, before compression.
const LARGEST: u64 = 1 << 20;

/// Output of Cargo without internet.
pub fn cargo(args: &[&str]) -> String {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(args)
        .arg("--offline")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Manifests of the workspace's members, as `cargo metadata` prints them.
fn members() -> Vec<Value> {
    let text = cargo(&["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&text).expect("JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

/// The published members.
fn published() -> Vec<Value> {
    members().into_iter().filter(|member| member["publish"].is_null()).collect()
}

fn folder(member: &Value) -> PathBuf {
    let manifest = Path::new(member["manifest_path"].as_str().expect("a path"));
    manifest.parent().expect("a folder").to_owned()
}

/// Paths of all files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn the_libraries_are_published_with_one_version() {
    let mut names: Vec<_> =
        published().iter().map(|m| m["name"].as_str().expect("a name").to_owned()).collect();
    names.sort();
    assert_eq!(names, PUBLISHED, "members without `publish = false`");
    let version = env!("CARGO_PKG_VERSION");
    for member in published() {
        assert_eq!(member["version"], version, "{}", member["name"]);
        for dependency in member["dependencies"].as_array().expect("dependencies") {
            // A dependency of tests without a version is not in a package.
            if PUBLISHED.iter().any(|name| dependency["name"] == *name) {
                assert_eq!(
                    dependency["req"],
                    format!("^{version}"),
                    "{}: {}",
                    member["name"],
                    dependency["name"]
                );
            }
        }
    }
    let changelog =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("CHANGELOG.md")).expect("changes");
    assert!(changelog.contains(version), "CHANGELOG.md does not contain {version}");
}

#[test]
fn published_crates_have_metadata() {
    for member in published() {
        for field in
            ["description", "documentation", "homepage", "license", "readme", "repository", "rust_version"]
        {
            let value = member[field].as_str().unwrap_or_default();
            assert!(!value.is_empty(), "{}: {field} is missing", member["name"]);
        }
        for (field, limit) in [("keywords", 5), ("categories", 5)] {
            let count = member[field].as_array().map_or(0, Vec::len);
            assert!((1..=limit).contains(&count), "{}: {count} {field}", member["name"]);
        }
        let docs = &member["metadata"]["docs"]["rs"];
        assert!(docs.is_object(), "{}: no [package.metadata.docs.rs]", member["name"]);
        // docs.rs builds without internet, and the packages have no [patch].
        let default = member["features"]["default"].as_array().cloned().unwrap_or_default();
        let features = docs["features"].as_array().cloned().unwrap_or_default();
        let all = features.iter().chain(default.iter().filter(|_| docs["no-default-features"] != true));
        let gpu: Vec<_> = all.filter(|name| ["cuda", "rocm"].iter().any(|gpu| *name == gpu)).collect();
        assert!(gpu.is_empty(), "{}: docs.rs cannot build the features {gpu:?}", member["name"]);
    }
}

#[test]
fn packages_have_the_files_that_they_need() {
    for member in published() {
        let (name, folder) = (member["name"].as_str().expect("a name"), folder(&member));
        let list = cargo(&["package", "--list", "--allow-dirty", "--package", name]);
        let listed: BTreeSet<PathBuf> = list.lines().map(|line| folder.join(line)).collect();
        let mut needed = files(&folder.join("src"));
        needed.extend(["README.md", "LICENSE-APACHE", "LICENSE-MIT"].map(|file| folder.join(file)));
        let sources =
            listed.iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
        for source in sources {
            let text = fs::read_to_string(source).expect("a source file");
            for literal in
                ["include_str!(\"", "include_bytes!(\""].iter().flat_map(|start| text.split(start).skip(1))
            {
                let (path, _) = literal.split_once('"').expect("a path");
                needed.push(source.with_file_name(path));
            }
        }
        let missing: Vec<_> = needed.iter().filter(|path| !listed.contains(*path)).collect();
        assert!(missing.is_empty(), "the package of {name} has no {missing:?}");
        for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
            let read = |folder: &Path| fs::read_to_string(folder.join(licence)).expect("a licence");
            assert_eq!(read(&folder), read(Path::new(env!("CARGO_MANIFEST_DIR"))), "{licence} of {name}");
        }
        let size: u64 = listed.iter().filter_map(|path| fs::metadata(path).ok()).map(|file| file.len()).sum();
        assert!(size <= LARGEST, "the package of {name} has {size} bytes");
    }
}
