//! Concatenates the chapters of the repository's book, the default text.

use std::{env, error::Error, fs, path::PathBuf};

/// Folder of the chapters, relative to this crate.
const CHAPTERS: &str = "../../book/src";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={CHAPTERS}");
    let paths =
        fs::read_dir(CHAPTERS)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    let mut chapters: Vec<PathBuf> =
        paths.into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "md")).collect();
    chapters.sort();
    let mut text = String::new();
    for chapter in chapters {
        text += &fs::read_to_string(chapter)?;
        text.push('\n');
    }
    let folder = env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?;
    fs::write(PathBuf::from(folder).join("book.txt"), text)?;
    Ok(())
}
