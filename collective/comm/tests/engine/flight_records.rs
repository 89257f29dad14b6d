//! Flight records: what they explain, when they are written, and the warning if that fails.

use crate::common::{KINDS, Kind, first_error, options, world};
use burn_ddp_comm::{Error, ReduceOp};
use std::{
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

#[cfg(target_os = "linux")]
#[test]
fn no_call_waits_for_the_record_of_another_group() {
    use std::{
        ffi::CString,
        fs::OpenOptions,
        os::unix::{ffi::OsStrExt, fs::OpenOptionsExt},
        path::Path,
        sync::mpsc::channel,
    };
    const PATIENT: Duration = Duration::from_secs(60);

    fn make_pipe(path: &Path) {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a string that ends with a zero.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    }

    let folder = tempfile::tempdir().unwrap();
    // Rank 0's record of the group of all ranks: it cannot be opened before somebody reads.
    let pipe = folder.path().join(format!(".flight-rank0.json.{}", std::process::id()));
    make_pipe(&pipe);
    let options = burn_ddp_comm::Options::default().flight_folder(folder.path()).timeout(2 * PATIENT);
    let groups = burn_ddp_comm::ProcessGroup::threads(2, options).unwrap();
    let (ended, result) = channel();
    let ranks: Vec<_> = groups
        .into_iter()
        .map(|group| {
            let ended = ended.clone();
            thread::spawn(move || {
                let part = group.split(0, 0).unwrap();
                if group.rank() == 1 {
                    ended.send(part.barrier()).unwrap();
                } else {
                    // The other rank waits in the part by then.
                    thread::sleep(Duration::from_millis(300));
                    group.abort("a separate reason");
                }
            })
        })
        .collect();
    let result = result.recv_timeout(PATIENT / 2);
    let reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe).unwrap();
    for rank in ranks {
        rank.join().unwrap();
    }
    drop(reader);
    let error = result.expect("rank 1 to hear of the failure while rank 0 cannot write").unwrap_err();
    assert!(matches!(error.cause(), Error::PeerLost { rank: 0, .. }), "{error}");
    assert!(error.to_string().contains("a separate reason"), "{error}");
}

#[test]
fn flight_records_explain_a_mismatch() {
    for kind in KINDS {
        let folder = tempfile::tempdir().unwrap();
        world(kind, 3, options().flight_folder(folder.path()), |group| {
            group.barrier().unwrap();
            if group.rank() == 1 {
                thread::sleep(Duration::from_millis(300));
            }
            let count = if group.rank() == 1 { 5 } else { 4 };
            let _ = group.all_reduce(&mut vec![0f32; count], ReduceOp::Sum);
            first_error(&group)
        });
        let files: Vec<_> =
            (0..3).map(|rank| folder.path().join(format!("flight-rank{rank}.json"))).collect();
        let text = burn_ddp_comm::explain(&files).unwrap();
        let expected = "Ranks 0 and 2 called all_reduce #2 (4 x F32, Sum), but rank 1 called all_reduce #2 (5 x F32, Sum).";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("collective mismatch"), "{text}");
    }
}

#[test]
fn a_record_that_cannot_be_written_is_a_warning_and_the_error_stays() {
    let folder = tempfile::NamedTempFile::new().unwrap();
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let hear = warnings.clone();
    let options = options()
        .flight_folder(folder.path())
        .on_warning(move |warning| hear.lock().unwrap().push(warning.to_string()));
    let errors = world(Kind::Tcp, 2, options, |group| {
        group.barrier().unwrap();
        if group.rank() == 1 {
            // The other rank has left the barrier by then.
            thread::sleep(Duration::from_millis(300));
            group.abort("on purpose");
        }
        first_error(&group)
    });
    for error in errors {
        assert!(matches!(error.cause(), Error::PeerLost { rank: 1, .. }), "{error}");
    }
    let warnings = warnings.lock().unwrap();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings.iter().all(|warning| warning.contains("write the flight record")), "{warnings:?}");
}
