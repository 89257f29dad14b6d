//! The part of Turso's API that `cubecl-environment` uses for its compilation and autotune caches,
//! over SQLite. The functions are `async` as Turso's are; each completes when first polled.
//!
//! Several processes may open one database: it is in WAL mode, and SQLite arbitrates writers with its
//! file locks.

use rusqlite::{
    OpenFlags, params_from_iter,
    types::{FromSql, Value},
};
use std::{
    collections::{HashSet, VecDeque},
    fmt, io,
    ops::Deref,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// How long a process waits for the others to open a new file.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// CubeCL's statement that removes one entry.
const REMOVE_ENTRY: &str = "DELETE FROM entries WHERE namespace = ?1 AND key = ?2";

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
        let Builder { path, read_only } = self;
        let mut database = Database { path, read_only, present: Arc::default() };
        if !read_only {
            let connection = database.connect()?;
            connection.busy_timeout(Duration::from_secs(5))?;
            connection.use_wal()?;
            database.present = Arc::new(connection.entries()?);
        }
        Ok(database)
    }
}

/// A database file that was opened once; every connection opens it again.
#[derive(Clone, Debug)]
pub struct Database {
    path: String,
    read_only: bool,
    /// Namespaces and keys of the entries that existed when the file was opened.
    present: Arc<HashSet<(String, Vec<u8>)>>,
}

impl Database {
    pub fn connect(&self) -> Result<Connection> {
        let access = match self.read_only {
            true => OpenFlags::SQLITE_OPEN_READ_ONLY,
            false => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
        };
        let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let sqlite = rusqlite::Connection::open_with_flags(&self.path, flags)?;
        Ok(Connection { sqlite, present: Arc::clone(&self.present) })
    }
}

#[derive(Debug)]
pub struct Connection {
    sqlite: rusqlite::Connection,
    present: Arc<HashSet<(String, Vec<u8>)>>,
}

impl Connection {
    pub fn busy_timeout(&self, timeout: Duration) -> Result<()> {
        Ok(self.sqlite.busy_timeout(timeout)?)
    }

    /// Switches the file to WAL mode. The busy time-out does not apply to that, so that it is repeated while other
    /// processes do the same.
    fn use_wal(&self) -> Result<()> {
        let began = Instant::now();
        loop {
            match self.sqlite.pragma_update(None, "journal_mode", "WAL").map_err(Error::from) {
                Err(Error::Busy(_)) if began.elapsed() < OPEN_TIMEOUT => {
                    thread::sleep(Duration::from_millis(10));
                }
                done => return done,
            }
        }
    }

    /// Namespaces and keys of all entries.
    fn entries(&self) -> Result<HashSet<(String, Vec<u8>)>> {
        let read = || {
            let mut statement = self.sqlite.prepare("SELECT namespace, key FROM entries")?;
            let rows = statement.query_map((), |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect::<rusqlite::Result<_>>()
        };
        match read().map_err(Error::from) {
            // A new file has no such table, and one of another layout is rebuilt by CubeCL.
            Err(Error::Error(_)) => Ok(HashSet::new()),
            entries => entries,
        }
    }

    /// The number of rows changed.
    ///
    /// Of single entries, only those are removed that existed when the database was opened. CubeCL moves an entry of
    /// an earlier build to its own key and then expects it there, while another rank may be moving it, too.
    pub async fn execute(&self, sql: &str, params: impl Params) -> Result<u64> {
        let params = params.values();
        if sql == REMOVE_ENTRY && !self.existed(&params) {
            return Ok(0);
        }
        Ok(self.sqlite.execute(sql, params_from_iter(params))? as u64)
    }

    /// Whether `params`, a namespace and a key, name an entry that existed when the database was opened.
    fn existed(&self, params: &[Value]) -> bool {
        let [Value::Text(namespace), Value::Blob(key)] = params else { return false };
        self.present.contains(&(namespace.clone(), key.clone()))
    }

    pub async fn query(&self, sql: &str, params: impl Params) -> Result<Rows> {
        let mut statement = self.sqlite.prepare(sql)?;
        let columns = statement.column_count();
        let rows = statement.query_map(params_from_iter(params.values()), |row| read(row, columns))?;
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
        self.sqlite.execute_batch(sql)?;
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
    fn values(self) -> Vec<Value>;
}

impl Params for () {
    fn values(self) -> Vec<Value> {
        Vec::new()
    }
}

macro_rules! tuples {
    ($($name:ident)+) => {
        impl<$($name: Param),+> Params for ($($name,)+) {
            #[allow(non_snake_case)]
            fn values(self) -> Vec<Value> {
                let ($($name,)+) = self;
                vec![$($name.value()),+]
            }
        }
    };
}
tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);

/// One value.
pub trait Param {
    fn value(self) -> Value;
}

impl Param for &str {
    fn value(self) -> Value {
        Value::Text(self.to_owned())
    }
}

macro_rules! params {
    ($($owned:ty)+) => {$(
        impl Param for $owned {
            fn value(self) -> Value {
                self.into()
            }
        }
    )+};
}
params!(String Vec<u8> i64);

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
            self.connection.sqlite.execute_batch("COMMIT")?;
            self.open = false;
            Ok(())
        }
    }

    impl Drop for Transaction<'_> {
        fn drop(&mut self) {
            if self.open {
                // The connection may be broken; then there is nothing to undo.
                let _ = self.connection.sqlite.execute_batch("ROLLBACK");
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
