//! Runs `scripts/gpu-check`.

use super::{Outcome, command, finish, program};
use serde_json::Value;
use std::{fs, path::Path};
use tempfile::TempDir;

/// Results of a command of gpu-check.
pub struct Check {
    pub folder: TempDir,
    pub outcome: Outcome,
}

impl Check {
    /// Runs a command with these variables in the environment.
    pub fn run(arguments: &[&str], variables: &[(String, String)]) -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/gpu-check");
        let program = program();
        let fixed = [&script, folder.path(), "--program".as_ref(), &program];
        let [script, folder_name, flag, program] = fixed.map(|path: &Path| path.to_str().expect("UTF-8"));
        let mut words = vec![script, arguments[0], folder_name, flag, program];
        words.extend(&arguments[1..]);
        let mut check = command("python3".as_ref(), &words);
        let outcome = finish(check.envs(variables.iter().cloned()).spawn().expect("python3"));
        Self { folder, outcome }
    }

    /// Name and result of each part.
    pub fn parts(&self) -> Vec<(String, String)> {
        let files = fs::read_dir(&self.folder).expect("results").map(|file| file.expect("a file").path());
        let json = files.into_iter().find(|path| path.extension().is_some_and(|kind| kind == "json"));
        let text = fs::read(json.unwrap_or_else(|| panic!("{:#?}", self.outcome))).expect("results");
        let results: Value = serde_json::from_slice(&text).expect("JSON");
        let word = |part: &Value, key: &str| part[key].as_str().expect("text").to_owned();
        let parts = results["parts"].as_array().expect("parts").iter();
        parts.map(|part| (word(part, "name"), word(part, "result"))).collect()
    }

    /// Panics unless there are parts and all of them have this result.
    pub fn assert_all(&self, result: &str) {
        let parts = self.parts();
        let right = !parts.is_empty() && parts.iter().all(|(_, of_part)| of_part == result);
        assert!(right, "not {result}: {parts:?}\n{}", self.outcome.stdout);
    }
}
