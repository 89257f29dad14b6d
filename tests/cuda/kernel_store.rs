//! The store of the kernel cache (`vendor/turso`): several connections to one file, as several ranks have.

use std::{
    pin::pin,
    sync::Barrier,
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};
use turso::{Builder, Connection, Database, transaction::TransactionBehavior};

// CubeCL's statements.
const CREATE: &str = "CREATE TABLE IF NOT EXISTS entries (namespace TEXT NOT NULL, key BLOB NOT NULL, \
                      value BLOB NOT NULL, origin INTEGER NOT NULL, PRIMARY KEY (namespace, key))";
const INSERT: &str = "INSERT INTO entries (namespace, key, value, origin) VALUES (?1, ?2, ?3, ?4) \
                      ON CONFLICT(namespace, key) DO UPDATE SET value = excluded.value, origin = excluded.origin \
                      WHERE entries.origin = 1 AND excluded.origin = 0";
const SELECT: &str = "SELECT value FROM entries WHERE namespace = ?1 AND key = ?2";
const PURGE: &str = "DELETE FROM entries WHERE namespace = ?1";
const PURGE_KEY: &str = "DELETE FROM entries WHERE namespace = ?1 AND key = ?2";

/// The result of a future that never waits.
fn ready<T>(future: impl Future<Output = turso::Result<T>>) -> turso::Result<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("the functions complete when first polled"),
    }
}

/// Opens the file, as CubeCL does.
fn open(path: &str) -> turso::Result<(Database, Connection)> {
    let database = ready(Builder::new_local(path).experimental_multiprocess_wal(true).build())?;
    let mut connection = database.connect()?;
    connection.busy_timeout(Duration::from_secs(5))?;
    ready(connection.pragma_query("synchronous = NORMAL", |_| Ok(())))?;
    let transaction = ready(connection.transaction_with_behavior(TransactionBehavior::Immediate))?;
    ready(transaction.execute(CREATE, ()))?;
    ready(transaction.commit())?;
    Ok((database, connection))
}

fn insert(connection: &Connection, key: &[u8]) -> turso::Result<u64> {
    ready(connection.execute(INSERT, ("kernels", key.to_vec(), vec![1_u8], 0_i64)))
}

fn has(connection: &Connection, key: &[u8]) -> turso::Result<bool> {
    let mut rows = ready(connection.query(SELECT, ("kernels", key.to_vec())))?;
    Ok(ready(rows.next())?.is_some())
}

#[test]
fn many_connections_open_a_new_file_at_once() {
    const CONNECTIONS: u8 = 8;
    for round in 0..60 {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("default.db");
        let path = path.to_str().expect("UTF-8");
        let start = Barrier::new(CONNECTIONS.into());
        let opened = thread::scope(|scope| {
            let open = |number| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    let (_database, connection) = open(path)?;
                    insert(&connection, &[number])?;
                    let mut modes = Vec::new();
                    ready(connection.pragma_query("journal_mode", |row| {
                        modes.push(row.get::<String>(0)?);
                        Ok(())
                    }))?;
                    Ok(modes)
                })
            };
            let threads: Vec<_> = (0..CONNECTIONS).map(open).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
        });
        for modes in opened {
            let modes: turso::Result<Vec<String>> = modes;
            assert_eq!(modes.expect("opened"), ["wal"], "round {round}");
        }
        let (_database, connection) = open(path).expect("opened");
        for number in 0..CONNECTIONS {
            assert!(has(&connection, &[number]).expect("read"), "round {round}");
        }
    }
}

/// CubeCL moves an entry of an earlier build to its own key and then expects it there. It would otherwise be gone
/// if another rank, which has read the new key, were removing it at that moment.
#[test]
fn entries_of_another_connection_are_not_removed_one_by_one() -> turso::Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("default.db");
    let path = path.to_str().expect("UTF-8");
    let purge =
        |connection: &Connection, key: &[u8]| ready(connection.execute(PURGE_KEY, ("kernels", key.to_vec())));

    let (_earlier, connection) = open(path)?;
    insert(&connection, b"old")?;
    let (_a, a) = open(path)?;
    let (_b, b) = open(path)?;

    assert_eq!(purge(&a, b"old")?, 1);
    insert(&a, b"new")?;
    assert_eq!(purge(&b, b"new")?, 0);
    assert!(has(&a, b"new")?);
    // It existed when the next process opened the file.
    let (_next, next) = open(path)?;
    assert_eq!(purge(&next, b"new")?, 1);
    assert!(!has(&a, b"new")?);

    insert(&a, b"newer")?;
    assert_eq!(ready(b.execute(PURGE, ("kernels",)))?, 1);
    Ok(())
}
