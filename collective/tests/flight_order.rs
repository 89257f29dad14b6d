//! Flight records are written after the calls of all groups have ended.
#![cfg(target_os = "linux")]

use collective::{Error, Options, ProcessGroup};
use std::{
    ffi::CString,
    fs::OpenOptions,
    os::unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    path::Path,
    sync::mpsc::channel,
    thread,
    time::Duration,
};

const PATIENT: Duration = Duration::from_secs(60);

fn make_pipe(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
}

#[test]
fn no_call_waits_for_the_record_of_another_group() {
    let folder = tempfile::tempdir().unwrap();
    // A named pipe in place of rank 0's record: opening it blocks until it is read.
    let pipe = folder.path().join(format!(".flight-rank0.json.{}", std::process::id()));
    make_pipe(&pipe);
    let options = Options::default().flight_folder(folder.path()).timeout(2 * PATIENT);
    let groups = ProcessGroup::threads(2, options).unwrap();
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
                    // The other rank waits in the subgroup by then.
                    thread::sleep(Duration::from_millis(300));
                    group.abort("a reason of its own");
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
    assert!(error.to_string().contains("a reason of its own"), "{error}");
}
