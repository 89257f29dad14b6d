//! Rendezvous through stores, and the store of a group.

use crate::common::{KINDS, options, ranks, world};
use burn_ddp_comm::{
    Error, FileStore, HashStore, InitMethod, Options, ProcessGroup, ReduceOp, Result, Store,
};
use std::{
    fs,
    os::unix::fs::{MetadataExt, chown, symlink},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

fn sums(size: usize, join: impl Fn(Options) -> ProcessGroup + Sync) -> Vec<i64> {
    let options = Options::default().world_size(size).rendezvous_timeout(Duration::from_secs(60));
    ranks(size, |rank| {
        let group = join(options.clone().rank(rank));
        let mut sum = [rank as i64];
        group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        sum[0]
    })
}

#[test]
fn ranks_rendezvous_through_any_store() {
    let folder = tempfile::tempdir().unwrap();
    let stores: [Arc<dyn Store>; 3] = [
        Arc::new(HashStore::default()),
        Arc::new(FileStore::new(folder.path())),
        Arc::new(Slow(HashStore::default())),
    ];
    for store in stores {
        // The entry of an earlier job must be ignored.
        store.set("rendezvous/default", b"127.0.0.1:1\nold secret\n").unwrap();
        let group = |options| ProcessGroup::init_with_store(store.clone(), options).unwrap();
        assert_eq!(sums(3, group), [3, 3, 3], "{store:?}");
        assert_eq!(store.try_get("rendezvous/default").unwrap(), None, "{store:?}: it is left");
    }
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}

#[test]
fn ranks_rendezvous_through_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job");
    // The file of an earlier job must be ignored.
    fs::write(&path, "127.0.0.1:1\nold secret\n").unwrap();
    let method = InitMethod::File(path.clone());
    assert_eq!(sums(3, |options| ProcessGroup::init(method.clone(), options).unwrap()), [3, 3, 3]);
    assert!(!path.exists());
}

/// A user's store with only the required methods.
#[derive(Debug)]
struct Slow(HashStore);

impl Store for Slow {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.0.set(key, value)
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.0.try_get(key)
    }

    fn delete(&self, key: &str) -> Result<()> {
        self.0.delete(key)
    }
}

#[test]
fn two_jobs_share_a_store_under_their_names() {
    let store: Arc<dyn Store> = Arc::new(HashStore::default());
    let sums = ranks(4, |number| {
        let (job, rank) = (["one", "other"][number / 2], number % 2);
        let options = Options::default().group_name(job).rank(rank).world_size(2);
        let group = ProcessGroup::init_with_store(store.clone(), options).unwrap();
        let mut sum = [number as i64];
        group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        sum[0]
    });
    assert_eq!(sums, [1, 1, 5, 5]);
}

#[test]
fn a_rendezvous_timeout_names_the_store() {
    let join = |store: Arc<dyn Store>| {
        let options = Options::default().rank(1).world_size(2).rendezvous_timeout(Duration::from_millis(300));
        ProcessGroup::init_with_store(store, options).unwrap_err()
    };
    let error = join(Arc::new(HashStore::default()));
    assert!(matches!(error, Error::Rendezvous { .. }), "{error:?}");
    assert!(error.to_string().contains("HashStore") && error.to_string().contains("rank 0"), "{error}");
}

/// A file of another user: created where this user may do so, otherwise one of the system's.
fn foreign(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("job");
    fs::write(&path, "127.0.0.1:1\nanother user's secret\n").unwrap();
    match chown(&path, Some(65_534), None) {
        Ok(()) => path,
        Err(_) => "/etc/passwd".into(),
    }
}

#[test]
fn a_rendezvous_file_of_another_user_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let path = foreign(&folder);
    let owner = fs::metadata(&path).unwrap().uid();
    let options = Options::default().rank(1).world_size(2).rendezvous_timeout(Duration::from_secs(5));
    let error = ProcessGroup::init(InitMethod::File(path.clone()), options).unwrap_err().to_string();
    for part in [&path.display().to_string(), &format!("belongs to user {owner}"), "choose another one"] {
        assert!(error.contains(part), "should name `{part}`: {error}");
    }
}

#[test]
fn a_rendezvous_file_is_not_written_through_another_users_link() {
    let folder = tempfile::tempdir().unwrap();
    let (path, trap) = (folder.path().join("job"), folder.path().join("trap"));
    fs::write(&trap, "").unwrap();
    // The first name that the process is expected to write to.
    symlink(&trap, folder.path().join(format!("job.{}", std::process::id()))).unwrap();
    let method = InitMethod::File(path.clone());
    assert_eq!(sums(2, |options| ProcessGroup::init(method.clone(), options).unwrap()), [1, 1]);
    assert_eq!(fs::read_to_string(&trap).unwrap(), "", "the secret went through the link");
}

#[test]
fn a_group_has_a_store() {
    for kind in KINDS {
        world(kind, 3, options(), |group| {
            let (store, soon) = (group.split(0, 0).unwrap().store(), Duration::from_secs(30));
            if group.rank() == 1 {
                store.set("name", b"value").unwrap();
            }
            assert_eq!(store.get("name", soon).unwrap(), b"value");
            group.barrier().unwrap();
            if group.rank() == 2 {
                store.delete("name").unwrap();
            }
            group.barrier().unwrap();
            // The other ranks may be ahead of the one that deletes the key.
            while store.try_get("name").unwrap().is_some() {}
            let error = store.get("name", Duration::from_millis(20)).unwrap_err().to_string();
            assert!(error.contains("store key \"name\"") && error.contains("no rank has set it"), "{error}");
            group.barrier().unwrap();
        });
    }
    let solo = ProcessGroup::solo();
    solo.store().set("a", b"b").unwrap();
    assert_eq!(solo.clone().store().get("a", Duration::ZERO).unwrap(), b"b");
}

#[test]
fn a_value_that_is_too_large_is_rejected() {
    for kind in KINDS {
        world(kind, 2, options(), |group| {
            let large = vec![255; 1 << 20];
            if let Err(error) = group.store().set("large", &large) {
                assert!(error.to_string().contains("1048576 bytes exceeds the limit"), "{error}");
            }
            let fits = vec![255; 500_000];
            group.store().set("fits", &fits).unwrap();
            assert_eq!(group.store().get("fits", Duration::from_secs(30)).unwrap(), fits);
            group.barrier().unwrap();
        });
    }
}
