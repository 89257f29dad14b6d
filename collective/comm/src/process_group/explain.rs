//! Diagnosis of a failed job from the flight records of its ranks.

use super::flight_recorder::{FlightRecord, RecordedCall};
use crate::{Error, Result};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Read,
    path::Path,
};

/// Maximum size of one file in bytes: about a hundred times what a rank writes.
const LIMIT: u64 = 16 << 20;

/// Reads the flight records of a job's ranks and describes which rank did what differently.
///
/// The text ends with the errors that the ranks reported.
///
/// # Errors
/// If there is no file, one cannot be read or is not a flight record, or two are of the same rank.
pub fn explain<P: AsRef<Path>>(files: &[P]) -> Result<String> {
    together(files.iter().map(|file| read(file.as_ref())).collect::<Result<_>>()?)
}

/// Diagnosis from `records`, in any order.
pub(crate) fn together(records: Vec<FlightRecord>) -> Result<String> {
    if records.is_empty() {
        return Err(Error::Invalid("there is no flight record to explain".into()));
    }
    let mut groups: BTreeMap<u64, BTreeMap<usize, FlightRecord>> = BTreeMap::new();
    for record in records {
        let (group, rank) = (record.group, record.rank);
        if groups.entry(group).or_default().insert(rank, record).is_some() {
            return Err(Error::Invalid(format!(
                "two of the flight records are of rank {rank} in the same group: pass one file per rank, all from one run"
            )));
        }
    }
    let several = groups.len() > 1;
    let lines = groups.iter().map(|(group, records)| {
        let text = explain_group(records);
        if several && *group != 0 { format!("Group {group:016x}: {text}") } else { text }
    });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

fn read(file: &Path) -> Result<FlightRecord> {
    let failed = |e| Error::io(format!("read the flight record {}", file.display()), &e);
    let mut text = Vec::new();
    File::open(file).map_err(failed)?.take(LIMIT + 1).read_to_end(&mut text).map_err(failed)?;
    parse(&text).map_err(|why| Error::Invalid(format!("{} is not a flight record: {why}", file.display())))
}

/// Parses the content of a flight record's file.
pub(crate) fn parse(text: &[u8]) -> Result<FlightRecord, String> {
    if text.len() as u64 > LIMIT {
        return Err(format!("it is larger than {} MiB", LIMIT >> 20));
    }
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

fn names(ranks: &[usize]) -> String {
    let list: Vec<_> = ranks.iter().map(usize::to_string).collect();
    match list.as_slice() {
        [one] => format!("rank {one}"),
        [all @ .., last] => format!("ranks {} and {last}", all.join(", ")),
        [] => "no rank".into(),
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn explain_group(records: &BTreeMap<usize, FlightRecord>) -> String {
    let mut text =
        different_calls(records).or_else(|| behind(records)).unwrap_or_else(|| unfinished(records));
    let members: BTreeSet<usize> =
        records.values().flat_map(|record| record.members.iter().copied()).collect();
    let silent: Vec<usize> = members.into_iter().filter(|rank| !records.contains_key(rank)).collect();
    if !silent.is_empty() {
        let leaves = if silent.len() == 1 { "leaves" } else { "leave" };
        text += &format!(
            " {} {leaves} no record: killed or stopped before it could be written, or its file is not among these.",
            capital(&names(&silent))
        );
    }
    let mut errors: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (rank, record) in records {
        errors.entry(&record.error).or_default().push(*rank);
    }
    for (error, ranks) in errors {
        text += &format!(" {} reported: {error}.", capital(&names(&ranks)));
    }
    text
}

fn collectives(record: &FlightRecord) -> impl DoubleEndedIterator<Item = &RecordedCall> {
    record.calls.iter().filter(|call| !call.direct)
}

fn last(record: &FlightRecord) -> Option<&RecordedCall> {
    collectives(record).next_back()
}

/// The first sequence number at which ranks made different calls.
fn different_calls(records: &BTreeMap<usize, FlightRecord>) -> Option<String> {
    let mut calls: BTreeMap<u64, BTreeMap<String, Vec<usize>>> = BTreeMap::new();
    for (rank, record) in records {
        for call in collectives(record) {
            calls.entry(call.call.seq).or_default().entry(call.call.to_string()).or_default().push(*rank);
        }
    }
    let (_, calls) = calls.into_iter().find(|(_, calls)| calls.len() > 1)?;
    let mut sides: Vec<_> = calls.into_iter().collect();
    // The majority first; the odd one out is what the reader looks for.
    sides.sort_by_key(|(_, ranks)| std::cmp::Reverse(ranks.len()));
    let sides: Vec<_> = sides.iter().map(|(call, ranks)| format!("{} called {call}", names(ranks))).collect();
    Some(capital(&sides.join(", but ")) + ".")
}

/// Ranks that did not make the last call of the others.
fn behind(records: &BTreeMap<usize, FlightRecord>) -> Option<String> {
    let seq = |record: &FlightRecord| last(record).map_or(0, |call| call.call.seq);
    let most = records.values().map(seq).max()?;
    let (there, behind): (Vec<_>, Vec<_>) = records.iter().partition(|(_, record)| seq(record) == most);
    let call = &last(there.first()?.1)?.call;
    if behind.is_empty() {
        return None;
    }
    let there: Vec<usize> = there.iter().map(|(rank, _)| **rank).collect();
    let behind: Vec<_> = behind
        .iter()
        .map(|(rank, record)| match last(record) {
            Some(last) => format!("rank {rank} never did: its last call was {}", last.call),
            None => format!("rank {rank} never did, nor anything before"),
        })
        .collect();
    Some(format!("{} called {call}, but {}.", capital(&names(&there)), behind.join(", and ")))
}

/// All ranks made the same calls: names the ranks on which the last one failed.
fn unfinished(records: &BTreeMap<usize, FlightRecord>) -> String {
    let Some(RecordedCall { call, .. }) = records.values().find_map(last) else {
        return "No rank with a record had called anything.".into();
    };
    let failed = |record: &FlightRecord| {
        last(record).is_some_and(|call| call.took_us.is_none() || call.error.is_some())
    };
    let stuck: Vec<usize> =
        records.iter().filter(|(_, record)| failed(record)).map(|(rank, _)| *rank).collect();
    if stuck.is_empty() {
        return format!(
            "All ranks with a record made the same calls and finished the last, {call}; the failure came between calls."
        );
    }
    format!("All ranks with a record made the same calls up to {call}, which failed on {}.", names(&stuck))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Call, DType};
    use std::time::Duration;

    fn record(rank: usize, calls: &[(u64, &'static str, bool)]) -> FlightRecord {
        let call = |(seq, operation, finished): &(u64, &'static str, bool)| RecordedCall {
            call: Call::new(operation, DType::F32, 4).numbered(*seq, Duration::ZERO),
            direct: false,
            begun_us: 0,
            took_us: finished.then_some(1),
            error: None,
        };
        FlightRecord {
            rank,
            members: vec![0, 1, 2],
            group: 0,
            host: "here".into(),
            pid: 1,
            written_us: 0,
            error: "it broke".into(),
            calls: calls.iter().map(call).collect(),
        }
    }

    fn told(records: Vec<FlightRecord>) -> String {
        let folder = tempfile::tempdir().unwrap();
        let files: Vec<_> = records.iter().map(|record| record.write(folder.path()).unwrap()).collect();
        explain(&files).unwrap()
    }

    #[test]
    fn a_rank_that_is_behind_is_named() {
        let text = told(vec![
            record(0, &[(1, "barrier", true), (2, "all_reduce", false)]),
            record(1, &[(1, "barrier", true)]),
            record(2, &[(1, "barrier", true), (2, "all_reduce", false)]),
        ]);
        assert!(text.contains("rank 1 never did: its last call was barrier #1"), "{text}");
        assert!(text.ends_with("Ranks 0, 1 and 2 reported: it broke."), "{text}");
    }

    #[test]
    fn an_unresponsive_rank_is_named() {
        let text = told(vec![record(0, &[(1, "barrier", false)]), record(2, &[(1, "barrier", false)])]);
        assert!(
            text.contains("barrier #1 (4 x F32), which failed on ranks 0 and 2. Rank 1 leaves no record"),
            "{text}"
        );
    }

    #[test]
    fn invalid_records_are_rejected() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let refusal = || explain(&[file.path()]).unwrap_err().to_string();
        assert!(refusal().contains("not a flight record"));
        file.as_file().set_len(LIMIT + 1).unwrap();
        assert!(refusal().contains("larger than 16 MiB"));
        assert!(explain::<&Path>(&[]).is_err());
    }

    #[test]
    fn two_records_of_one_rank_are_rejected() {
        let same = || record(1, &[(1, "barrier", true)]);
        let error = together(vec![record(0, &[]), same(), same()]).unwrap_err().to_string();
        assert!(error.contains("two of the flight records are of rank 1"), "{error}");
    }
}
