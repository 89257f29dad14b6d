//! The text: its vocabulary, and its contiguous parts for training, validation and test.

use anyhow::{Context, Result, anyhow, bail};
use burn_ddp::data::Tokens;
use sha2::{Digest, Sha256};
use std::{fs, path::Path};

/// The chapters of this repository's book, in the order of their file names.
const BOOK: &str = include_str!(concat!(env!("OUT_DIR"), "/book.txt"));

/// The characters of a text, each with a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    /// Distinct characters in ascending order; their positions are the numbers.
    characters: Vec<char>,
}

impl Vocabulary {
    /// The vocabulary of a text.
    pub fn from_text(text: &str) -> Self {
        let mut occurs = vec![false; char::MAX as usize + 1];
        text.chars().for_each(|c| occurs[c as usize] = true);
        Self { characters: ('\0'..=char::MAX).filter(|c| occurs[*c as usize]).collect() }
    }

    /// Number of characters.
    #[expect(clippy::len_without_is_empty)] // texts have characters
    pub fn len(&self) -> usize {
        self.characters.len()
    }

    /// All characters in ascending order.
    pub fn characters(&self) -> String {
        self.characters.iter().collect()
    }

    /// The number of each character of `text`.
    ///
    /// # Errors
    /// The first character that is not in the vocabulary.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>, char> {
        let number = |c: char| self.characters.binary_search(&c).map(|number| number as i32).map_err(|_| c);
        text.chars().map(number).collect()
    }

    /// The text of numbers; numbers that are not in the vocabulary are left out.
    pub fn decode(&self, numbers: &[i32]) -> String {
        numbers.iter().filter_map(|number| self.characters.get(usize::try_from(*number).ok()?)).collect()
    }
}

/// A text in three contiguous parts.
#[derive(Clone, Debug)]
pub struct Text {
    /// `book`, or the name of the file.
    pub name: String,
    /// Description of the text's size, for display.
    pub source: String,
    pub vocabulary: Vocabulary,
    pub train: Tokens,
    /// Empty with `--valid-split 0`.
    pub valid: Tokens,
    pub test: Tokens,
    /// SHA-256 of the text.
    pub digest: String,
}

impl Text {
    /// Reads a file, or the book without a file, and divides it into `[validation, test]` fractions and the rest.
    ///
    /// # Errors
    /// If the file cannot be read, is not UTF-8, or is too short for windows of `block_size` characters.
    pub fn load(path: Option<&Path>, splits: [f64; 2], block_size: usize) -> Result<Self> {
        let what = path.map_or("the book".into(), |path| format!("--text {}", path.display()));
        let file_name = |path: &Path| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into();
        let name = path.map_or("book".into(), file_name);
        let text = path.map_or_else(|| Ok(BOOK.into()), read);
        text.and_then(|text| Self::divide(name, &text, splits, block_size)).context(what)
    }

    fn divide(name: String, text: &str, [valid, test]: [f64; 2], block_size: usize) -> Result<Self> {
        let vocabulary = Vocabulary::from_text(text);
        let tokens = vocabulary.encode(text).map_err(|c| anyhow!("no number for the character {c:?}"))?;
        let part = |length: usize, fraction: f64| (length as f64 * fraction).round() as usize;
        let rest = tokens.len() - part(tokens.len(), test);
        let train = rest - part(rest, valid);
        // Training windows are shifted by up to a window. A window has a character more, which is predicted last.
        let parts = [(train, 2 * block_size, "training"), (rest - train, block_size + 1, "validation")];
        let parts = parts.into_iter().filter(|(_, _, part)| *part == "training" || valid > 0.0);
        for (length, least, part) in parts.chain([(tokens.len() - rest, block_size + 1, "test")]) {
            if length < least {
                bail!(
                    "{length} of {} characters are for {part}, at least {least} are needed; use a longer text or a smaller --block-size",
                    tokens.len()
                );
            }
        }
        Ok(Self {
            name,
            source: format!("{} characters, {} different ones", tokens.len(), vocabulary.len()),
            train: tokens[..train].into(),
            valid: tokens[train..rest].into(),
            test: tokens[rest..].into(),
            vocabulary,
            digest: hex::encode(Sha256::digest(text)),
        })
    }
}

fn read(path: &Path) -> Result<String> {
    let bytes = fs::read(path).context("cannot read the text")?;
    if bytes.is_empty() {
        bail!("the file is empty");
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        anyhow!("not UTF-8 at byte {at}; convert the file, for example with `iconv -t UTF-8`")
    })
}
