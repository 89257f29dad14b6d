//! The part of Turso's API that `cubecl-environment` uses for its compilation and autotune caches,
//! over SQLite. The functions are `async` as Turso's are; each completes when first polled.
//!
//! Several processes may open one database: it is in WAL mode, and SQLite arbitrates writers with its
//! file locks.

use rusqlite::{OpenFlags, ToSql, types::FromSql};
use std::{collections::VecDeque, fmt, io, ops::Deref, time::Duration};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a statement failed.
#[derive(Debug)]
pub enum Error {
    /// Another connection holds the lock.
    Busy(String),
    /// Another connection has written since this transaction began to read.
    BusySnapshot(String),
    /// The file system refused an operation, named by the second field.
    IoError(io::ErrorKind, &'static str),
    /// Any other failure.
    Error(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Busy(text) | Error::BusySnapshot(text) | Error::Error(text) => f.write_str(text),
            Error::IoError(kind, what) => write!(f, "{what}: {kind}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked};
        match error.sqlite_error_code() {
            Some(DatabaseBusy | DatabaseLocked) => Error::Busy(error.to_string()),
            Some(_) | None => Error::Error(error.to_string()),
        }
    }
}

/// Opens a database file.
pub struct Builder {
    path: String,
    read_only: bool,
}

impl Builder {
    pub fn new_local(path: &str) -> Self {
        Self { path: path.into(), read_only: false }
    }

    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// SQLite's WAL always allows several processes.
    pub fn experimental_multiprocess_wal(self, _: bool) -> Self {
        self
    }

    /// SQLite always has VACUUM.
    pub fn experimental_vacuum(self, _: bool) -> Self {
        self
    }

    pub async fn build(self) -> Result<Database> {
        let database = Database { path: self.path, read_only: self.read_only };
        let connection = database.connect()?;
        if !database.read_only {
            connection.busy_timeout(Duration::from_secs(5))?;
            connection.0.pragma_update(None, "journal_mode", "WAL")?;
        }
        Ok(database)
    }
}

/// A database file that was opened once; every connection opens it again.
#[derive(Clone, Debug)]
pub struct Database {
    path: String,
    read_only: bool,
}

impl Database {
    pub fn connect(&self) -> Result<Connection> {
        let access = match self.read_only {
            true => OpenFlags::SQLITE_OPEN_READ_ONLY,
            false => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
        };
        let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        Ok(Connection(rusqlite::Connection::open_with_flags(&self.path, flags)?))
    }
}

#[derive(Debug)]
pub struct Connection(rusqlite::Connection);

impl Connection {
    pub fn busy_timeout(&self, timeout: Duration) -> Result<()> {
        Ok(self.0.busy_timeout(timeout)?)
    }

    /// The number of rows changed.
    pub async fn execute(&self, sql: &str, params: impl Params) -> Result<u64> {
        let params = params.boxed();
        let params: Vec<&dyn ToSql> = params.iter().map(|param| &**param).collect();
        Ok(self.0.execute(sql, &params[..])? as u64)
    }

    pub async fn query(&self, sql: &str, params: impl Params) -> Result<Rows> {
        let params = params.boxed();
        let params: Vec<&dyn ToSql> = params.iter().map(|param| &**param).collect();
        let mut statement = self.0.prepare(sql)?;
        let columns = statement.column_count();
        let rows = statement.query_map(&params[..], |row| read(row, columns))?;
        Ok(Rows(rows.collect::<Result<_, _>>()?))
    }

    pub async fn pragma_query(&self, pragma: &str, mut visit: impl FnMut(&Row) -> Result<()>) -> Result<()> {
        let mut rows = self.query(&format!("PRAGMA {pragma}"), ()).await?;
        while let Some(row) = rows.next().await? {
            visit(&row)?;
        }
        Ok(())
    }

    pub async fn transaction_with_behavior(
        &mut self,
        behavior: transaction::TransactionBehavior,
    ) -> Result<transaction::Transaction<'_>> {
        let sql = match behavior {
            transaction::TransactionBehavior::Deferred => "BEGIN DEFERRED",
            transaction::TransactionBehavior::Immediate => "BEGIN IMMEDIATE",
        };
        self.0.execute_batch(sql)?;
        Ok(transaction::Transaction { connection: self, open: true })
    }
}

fn read(row: &rusqlite::Row<'_>, columns: usize) -> rusqlite::Result<Row> {
    (0..columns).map(|column| row.get(column)).collect::<Result<_, _>>().map(Row)
}

/// The rows that a query found.
pub struct Rows(VecDeque<Row>);

impl Rows {
    pub async fn next(&mut self) -> Result<Option<Row>> {
        Ok(self.0.pop_front())
    }
}

pub struct Row(Vec<rusqlite::types::Value>);

impl Row {
    pub fn get<T: FromSql>(&self, column: usize) -> Result<T> {
        let value = self.0.get(column).ok_or_else(|| Error::Error(format!("no column {column}")))?;
        T::column_result(value.into()).map_err(|error| Error::Error(error.to_string()))
    }
}

/// Values for a statement's placeholders: a tuple.
pub trait Params {
    fn boxed(self) -> Vec<Box<dyn ToSql>>;
}

/// One such value.
pub trait Param {
    fn boxed(self) -> Box<dyn ToSql>;
}

impl Param for &str {
    fn boxed(self) -> Box<dyn ToSql> {
        Box::new(self.to_owned())
    }
}

impl Param for Vec<u8> {
    fn boxed(self) -> Box<dyn ToSql> {
        Box::new(self)
    }
}

impl Param for String {
    fn boxed(self) -> Box<dyn ToSql> {
        Box::new(self)
    }
}

impl Param for i64 {
    fn boxed(self) -> Box<dyn ToSql> {
        Box::new(self)
    }
}

impl Params for () {
    fn boxed(self) -> Vec<Box<dyn ToSql>> {
        Vec::new()
    }
}

macro_rules! tuples {
    ($($name:ident)+) => {
        impl<$($name: Param),+> Params for ($($name,)+) {
            #[allow(non_snake_case)]
            fn boxed(self) -> Vec<Box<dyn ToSql>> {
                let ($($name,)+) = self;
                vec![$($name.boxed()),+]
            }
        }
    };
}
tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);

pub mod transaction {
    use super::{Connection, Deref, Result};

    pub enum TransactionBehavior {
        Deferred,
        /// Takes the write lock at once.
        Immediate,
    }

    /// Rolled back when dropped without [`commit`](Self::commit).
    pub struct Transaction<'a> {
        pub(super) connection: &'a Connection,
        pub(super) open: bool,
    }

    impl Transaction<'_> {
        pub async fn commit(mut self) -> Result<()> {
            self.connection.0.execute_batch("COMMIT")?;
            self.open = false;
            Ok(())
        }
    }

    impl Drop for Transaction<'_> {
        fn drop(&mut self) {
            if self.open {
                // The connection may be broken; then there is nothing to undo.
                let _ = self.connection.0.execute_batch("ROLLBACK");
            }
        }
    }

    impl Deref for Transaction<'_> {
        type Target = Connection;

        fn deref(&self) -> &Connection {
            self.connection
        }
    }
}
