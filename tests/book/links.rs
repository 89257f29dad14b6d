//! Every link and image of the book exists, and every chapter begins with its purpose.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// The text of a page without code blocks.
pub fn prose(page: &str) -> String {
    page.split("```").step_by(2).collect()
}

/// The anchor that mdbook generates for a heading.
pub fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Targets of the links of a page.
pub fn links(prose: &str) -> impl Iterator<Item = &str> {
    prose.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link)
}

/// The pages of the book by name.
fn book(folder: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).expect("the book").map(|entry| entry.expect("an entry").path());
    let pages = entries.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    pages.map(|path| (name(&path), prose(&fs::read_to_string(&path).expect("a page")))).collect()
}

#[test]
fn every_link_of_the_book_exists() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("book/src");
    let pages = book(&folder);
    let anchors: BTreeMap<&str, BTreeSet<String>> = pages
        .iter()
        .map(|(name, page)| {
            let headings = page.lines().filter(|line| line.starts_with('#'));
            (name.as_str(), headings.map(|line| anchor(line.trim_start_matches('#'))).collect())
        })
        .collect();
    let mut followed = 0;
    for (name, page) in &pages {
        for link in links(page).filter(|link| !link.starts_with("http")) {
            let (file, part) = link.split_once('#').unwrap_or((link, ""));
            let file = if file.is_empty() { name } else { file };
            assert!(folder.join(file).is_file(), "{name}: {link}: there is no such file");
            let there = part.is_empty() || anchors.get(file).is_some_and(|page| page.contains(part));
            assert!(there, "{name}: {link}: the page has no such heading");
            followed += 1;
        }
    }
    assert!(followed > 100, "only {followed} links were found");
}

#[test]
fn every_chapter_begins_with_its_purpose() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("book/src");
    let chapters = book(&folder).into_iter().filter(|(name, _)| name != "SUMMARY.md" && name != "answers.md");
    for (name, page) in chapters {
        let opening: String = page.lines().filter(|line| !line.is_empty()).nth(1).unwrap_or_default().into();
        let is_question = opening.starts_with('*') && opening.ends_with("?*");
        assert!(
            is_question || opening.starts_with("After this chapter you "),
            "{name} opens with: {opening}"
        );
    }
}
