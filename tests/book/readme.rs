//! The README: its links, the versions that it states, and its Chinese translation.

use super::links::{anchor, links, prose};
use std::{fs, path::Path};

/// The README and its translation.
const READMES: [&str; 2] = ["README.md", "README.zh-CN.md"];

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// What a line must share with its translation.
#[derive(Debug, PartialEq)]
enum Shared<'a> {
    /// A line of a code block, with the lines that begin and end it.
    Code(&'a str),
    /// A line of text: heading level, number of table columns, and inline code, sorted because languages order it
    /// differently.
    Text { heading: usize, columns: usize, code: Vec<&'a str> },
}

/// The shared part of every line of a page.
fn shared(page: &str) -> Vec<Shared<'_>> {
    let mut inside = false;
    let shared = page.lines().map(|line| {
        let fence = line.starts_with("```");
        inside ^= fence;
        if inside || fence {
            return Shared::Code(line);
        }
        let mut code: Vec<_> = line.split('`').skip(1).step_by(2).collect();
        code.sort_unstable();
        let heading = line.bytes().take_while(|byte| *byte == b'#').count();
        Shared::Text { heading, columns: line.matches('|').count(), code }
    });
    shared.collect()
}

#[test]
fn the_translation_has_the_commands_of_the_readme() {
    let [english, chinese] = READMES.map(read);
    let [lines, translated] = [&english, &chinese].map(|page| shared(page));
    for (number, (line, translation)) in lines.iter().zip(&translated).enumerate() {
        assert!(
            line == translation,
            "line {} of README.zh-CN.md differs:\n  README.md:       {line:?}\n  README.zh-CN.md: {translation:?}",
            number + 1
        );
    }
    assert_eq!(translated.len(), lines.len(), "number of lines of README.zh-CN.md and README.md");
    let code = lines.iter().filter(|line| matches!(line, Shared::Code(_))).count();
    assert!(code > 40, "only {code} lines of code were found");
}

#[test]
fn the_translation_links_to_the_same_pages() {
    let [english, chinese] = READMES.map(|name| prose(&read(name)));
    let [english, chinese] = [&english, &chinese].map(|page| {
        // Anchors within a page are translated with its headings.
        let mut links: Vec<_> = links(page).filter(|link| !link.starts_with('#')).collect();
        links.retain(|link| !READMES.contains(link));
        links.sort_unstable();
        links
    });
    for link in &english {
        assert!(chinese.contains(link), "README.zh-CN.md has no link to {link}");
    }
    assert_eq!(chinese, english);
}

#[test]
fn every_link_of_the_readme_exists() {
    for (name, other) in READMES.into_iter().zip(READMES.into_iter().rev()) {
        let page = read(name);
        let first: String = page.lines().take(5).collect();
        assert!(first.contains(&format!("]({other})")), "{name} has no link to {other} in its first lines");
        for link in links(&prose(&page)).filter(|link| !link.starts_with("http")) {
            let (file, part) = link.split_once('#').unwrap_or((link, ""));
            let file = if file.is_empty() { name } else { file };
            let target = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
            assert!(target.exists(), "{name}: {link}: there is no such file");
            let has = |part| {
                prose(&read(file))
                    .lines()
                    .any(|line| line.starts_with('#') && anchor(line.trim_start_matches('#')) == part)
            };
            assert!(part.is_empty() || has(part), "{name}: {link}: the page has no such heading");
        }
    }
}

#[test]
fn the_readme_states_the_versions_of_the_manifest() {
    let manifest = read("Cargo.toml");
    let value = |start: &str| {
        let (_, rest) = manifest.split_once(start).unwrap_or_else(|| panic!("Cargo.toml has no {start}"));
        rest.split_once('"').expect("a string").0
    };
    let rust = value("\nrust-version = \"");
    let burn = value("\nburn = { version = \"=");
    let cubecl = value("\ncubecl = { version = \"=");
    let version = value("\nversion = \"").trim_end_matches(".0");
    assert_eq!(value("\nlicense = \""), "MIT OR Apache-2.0");
    for name in READMES {
        let page = read(name);
        for stated in [
            format!("badge/rust-{rust}%2B-"),
            format!("badge/burn-{burn}-"),
            "badge/licence-MIT%20or%20Apache--2.0-".into(),
            format!("| {cubecl} | {rust} "),
            format!("\n| {version}"),
            format!("burn = {{ version = \"={burn}\""),
        ] {
            assert!(page.contains(&stated), "{name} does not contain {stated:?}");
        }
    }
}
