//! `epochs.csv`: a row per epoch.
//!
//! The table is rewritten after every epoch, because its columns depend on the values that callbacks log.

use super::EvaluatedSet;
use crate::process::atomic_file;
use collective::strategy::EpochReport;
use std::{
    iter,
    path::{Path, PathBuf},
};

/// The table, in memory and on disk.
pub(super) struct EpochTable {
    path: PathBuf,
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl EpochTable {
    /// Reads the table at `path`, which may be empty.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn open(path: &Path) -> csv::Result<Self> {
        let cells = |row: &csv::StringRecord| row.iter().map(String::from).collect();
        let mut reader = csv::ReaderBuilder::new().flexible(true).from_path(path)?;
        let header = cells(reader.headers()?);
        let rows = reader.records().map(|row| row.map(|row| cells(&row))).collect::<csv::Result<_>>()?;
        Ok(Self { path: path.into(), header, rows })
    }

    /// Adds a row and writes the table. `set` is the set that was evaluated.
    ///
    /// # Errors
    /// If the table cannot be written.
    pub fn push(&mut self, set: EvaluatedSet, report: &EpochReport) -> csv::Result<()> {
        let mut row = vec![("epoch".to_owned(), report.epoch.to_string())];
        row.push(("train_loss".into(), report.train_loss.to_string()));
        for column in [EvaluatedSet::Test, EvaluatedSet::Valid] {
            let cell = |value: f64| if column == set { value.to_string() } else { String::new() };
            row.extend(
                report.means().map(|(m, value)| (format!("{}_{}", column.name(), m.name), cell(value))),
            );
        }
        row.push(("seconds".into(), report.elapsed.as_secs_f64().to_string()));
        for (name, number) in report.logged.iter().filter_map(|logged| Some((&logged.name, logged.number?))) {
            let is_taken = row.iter().any(|(column, _)| column == name);
            row.push((if is_taken { format!("callback_{name}") } else { name.clone() }, number.to_string()));
        }
        for (column, _) in &row {
            if !self.header.contains(column) {
                self.header.push(column.clone());
            }
        }
        let cell = |column: &String| {
            row.iter().find(|cell| cell.0 == *column).map_or(String::new(), |cell| cell.1.clone())
        };
        self.rows.push(self.header.iter().map(cell).collect());
        let mut table = csv::Writer::from_writer(Vec::new());
        for row in iter::once(&self.header).chain(&self.rows) {
            // Rows of earlier epochs may have fewer columns.
            let cells = row.iter().map(String::as_str).chain(iter::repeat(""));
            table.write_record(cells.take(self.header.len()))?;
        }
        let table = table.into_inner().map_err(|error| error.into_error())?;
        Ok(atomic_file::write(&self.path, &table)?)
    }
}
