//! Comparison of the ranks' settings.

use super::ProcessGroup;
use crate::{Error, Result, SettingDifference};

/// Name and value of a setting.
type Setting = (String, String);

/// Placeholder for a setting that a rank does not have.
const NOT_SET: &str = "not set";

impl ProcessGroup {
    /// Verifies that all ranks have the same settings, pairs of name and value.
    ///
    /// Every rank must call it. Ranks with different settings would compute different results or wait for
    /// each other in different collectives.
    ///
    /// # Errors
    /// [`Error::SettingsDiffer`] on every rank if a value differs or only some ranks have a setting; those of
    /// [`ProcessGroup::all_reduce`]. The group stays usable after a difference.
    pub fn verify_settings<N: ToString, V: ToString>(&self, settings: &[(N, V)]) -> Result<()> {
        if self.world_size() == 1 {
            return Ok(());
        }
        let own: Vec<Setting> =
            settings.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let all = self.all_gather_object(&own)?;
        let differences = differences(&all, self.members());
        if differences.is_empty() { Ok(()) } else { Err(Error::SettingsDiffer { differences }) }
    }
}

/// The settings that differ in `all`, in the order in which the ranks list them; `members` are the ranks'
/// world ranks.
fn differences(all: &[Vec<Setting>], members: &[usize]) -> Vec<SettingDifference> {
    let mut names: Vec<&String> = Vec::new();
    let unequal = all.iter().filter(|settings| **settings != all[0]);
    for (name, _) in all.iter().take(1).chain(unequal).flatten() {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let compared = names.into_iter().map(|name| {
        let mut values: Vec<(String, Vec<usize>)> = Vec::new();
        for (settings, rank) in all.iter().zip(members) {
            let value = settings.iter().find(|(other, _)| other == name).map_or(NOT_SET, |(_, value)| value);
            match values.iter_mut().find(|(other, _)| other == value) {
                Some((_, ranks)) => ranks.push(*rank),
                None => values.push((value.into(), vec![*rank])),
            }
        }
        SettingDifference { name: name.clone(), values }
    });
    compared.filter(|setting| setting.values.len() > 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Vec<Setting> {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn each_difference_has_all_values_with_their_ranks() {
        let all = [
            settings(&[("lr", "0.05"), ("seed", "1")]),
            settings(&[("lr", "0.06"), ("seed", "1")]),
            settings(&[("seed", "1"), ("lr", "0.05"), ("new", "yes")]),
        ];
        let found = differences(&all, &[4, 5, 6]);
        let shown: Vec<String> = found.iter().map(SettingDifference::to_string).collect();
        assert_eq!(
            shown,
            ["lr is 0.05 on ranks 4, 6 and 0.06 on rank 5", "new is not set on ranks 4, 5 and yes on rank 6"]
        );
        assert!(differences(&all[..1], &[4]).is_empty());
    }

    #[test]
    fn every_rank_gets_the_differences_and_the_group_stays_usable() {
        let groups = ProcessGroup::threads(3, crate::Options::default()).expect("a world");
        std::thread::scope(|scope| {
            for group in groups {
                scope.spawn(move || {
                    let batch_size = if group.rank() == 1 { 32 } else { 64 };
                    let error = group.verify_settings(&[("lr", 64), ("batch_size", batch_size)]);
                    let text = error.expect_err("different").to_string();
                    assert!(text.contains("batch_size is 64 on ranks 0, 2 and 32 on rank 1"), "{text}");
                    assert!(!text.contains("lr"), "{text}");
                    group.verify_settings(&[("lr", 64)]).expect("the same");
                });
            }
        });
    }
}
