//! Start and end of a device transport: unique id, order of calls, and reasons to stay on the host.

use super::{
    common::{Kind, options, world},
    site::{HostSite, Op, StandIn, attach, collective, site},
};
use burn_ddp_comm::{
    DevicePath, Error, ReduceOp, Result,
    communicator::World,
    transport::nccl::{Event, Library, NcclCommunicator, Stream},
};
use std::{
    ffi::c_void,
    sync::Arc,
    time::{Duration, Instant},
};

#[test]
fn rank_0_creates_the_id_and_all_ranks_shut_down_in_order() {
    for kind in [Kind::Thread, Kind::Tcp] {
        let stand_in = StandIn::new();
        world(kind, 3, options(), |group| {
            attach(&group, &stand_in);
            collective(&group, &Op::AllReduce(ReduceOp::Sum), &[1.0f32]).unwrap();
            collective(&group, &Op::AllGather, &[1.0f32]).unwrap();
            group.destroy();
        });
        let log = stand_in.log();
        assert_eq!(log[0], "GetUniqueId");
        assert_eq!(log.iter().filter(|line| *line == "GetUniqueId").count(), 1);
        for rank in 0..3 {
            assert_eq!(stand_in.calls(rank), ["Init", "AllReduce", "AllGather", "Finalize", "Destroy"]);
        }
    }
}

#[test]
fn dropping_a_group_shuts_it_down_in_order() {
    let stand_in = StandIn::new();
    world(Kind::Shm, 2, options(), |group| {
        attach(&group, &stand_in);
        collective(&group, &Op::AllReduce(ReduceOp::Sum), &[1.0f32]).unwrap();
    });
    // The watchdog has ended when the drop returns: it must not call NCCL while the process exits.
    for rank in 0..2 {
        assert_eq!(stand_in.calls(rank), ["Init", "AllReduce", "Finalize", "Destroy"]);
    }
}

/// The reason why all ranks of a world use host memory.
fn refused(size: usize, attach: impl Fn(&burn_ddp_comm::ProcessGroup) -> DevicePath + Sync) -> String {
    let whys = world(Kind::Shm, size, options().rendezvous_timeout(Duration::from_secs(3)), |group| {
        let path = attach(&group);
        // The group stays usable.
        group.barrier().unwrap();
        match path {
            DevicePath::Host(why) => why,
            DevicePath::Nccl(library) => panic!("{library}"),
        }
    });
    assert!(whys.iter().all(|why| *why == whys[0]), "{whys:?}");
    whys[0].clone()
}

#[test]
fn all_ranks_use_the_host_if_one_has_no_device() {
    let stand_in = StandIn::new();
    let why = refused(3, |group| {
        let mine = site(&stand_in, group.rank()).and_then(|site| match group.rank() {
            2 => Err("no GPU here".into()),
            _ => Ok(site),
        });
        group.attach(mine).unwrap()
    });
    assert_eq!(why, "rank 2: no GPU here");
    assert!(stand_in.log().is_empty());
}

#[test]
fn two_ranks_on_one_device_are_rejected_by_name() {
    let stand_in = StandIn::new();
    let why = refused(4, |group| group.attach(site(&stand_in, group.rank() % 3)).unwrap());
    assert!(why.starts_with("ranks 0 and 3 share one GPU"), "{why}");
}

#[test]
fn different_nccl_versions_are_rejected_by_name() {
    let (old, new) = (StandIn::of(&[("version", -1, 22_000)]).unwrap(), StandIn::new());
    let why = refused(2, |group| {
        let stand_in = if group.rank() == 0 { &old } else { &new };
        group.attach(site(stand_in, group.rank())).unwrap()
    });
    assert!(why.starts_with("rank 0 has NCCL 2.20.0, but rank 1 2.21.5"), "{why}");
}

#[test]
fn a_version_without_ncclconfig_is_rejected() {
    let error = StandIn::of(&[("version", -1, 21_304)]).unwrap_err().to_string();
    assert!(error.contains("it is NCCL 2.13.4, but 2.14.0 is required"), "{error}");
}

#[test]
fn a_slow_init_succeeds() {
    let stand_in = StandIn::of(&[("slow_init", 1, 700)]).unwrap();
    world(Kind::Shm, 2, options(), |group| {
        attach(&group, &stand_in);
        group.destroy();
    });
}

#[test]
fn an_init_that_hangs_times_out() {
    let stand_in = StandIn::of(&[("no_init", 1, 1)]).unwrap();
    let begun = Instant::now();
    let why = refused(3, |group| group.attach(site(&stand_in, group.rank())).unwrap());
    assert!(why.contains("timed out after 3 s"), "{why}");
    assert!(begun.elapsed() < Duration::from_secs(60));
    for rank in 0..3 {
        // NCCL cannot abort an initialisation.
        assert_eq!(stand_in.calls(rank), ["Init"]);
    }
}

#[test]
fn an_init_that_ends_after_its_deadline_is_aborted() {
    let stand_in = StandIn::of(&[("slow_init", -1, 4000)]).unwrap();
    let why = refused(2, |group| group.attach(site(&stand_in, group.rank())).unwrap());
    assert!(why.contains("timed out after 3 s"), "{why}");
    let begun = Instant::now();
    while stand_in.calls(0).len() < 2 || stand_in.calls(1).len() < 2 {
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", stand_in.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    for rank in 0..2 {
        assert_eq!(stand_in.calls(rank), ["Init", "Abort"]);
    }
}

#[test]
fn shutdown_waits_a_bounded_time_for_an_absent_rank() {
    let stand_in = StandIn::of(&[("no_finalize", 1, 1)]).unwrap();
    let begun = Instant::now();
    world(Kind::Thread, 2, options(), |group| {
        attach(&group, &stand_in);
        collective(&group, &Op::AllReduce(ReduceOp::Sum), &[1.0f32]).unwrap();
        group.destroy();
    });
    assert!(begun.elapsed() < Duration::from_secs(60));
    for rank in 0..2 {
        assert_eq!(stand_in.calls(rank), ["Init", "AllReduce", "Finalize", "Abort"]);
    }
}

#[test]
fn all_ranks_use_the_host_if_a_device_has_no_identity() {
    let stand_in = StandIn::new();
    let why = refused(2, |group| {
        let identity = Err(Error::Invalid("its driver is gone".into()));
        let broken = HostSite { identity, ..HostSite::new(&stand_in, String::new()) };
        group.attach(Ok(Arc::new(broken))).unwrap()
    });
    assert_eq!(why, "rank 0: its driver is gone");
}

/// Environment variable with the path of a real libnccl, such as that of the wheel `nvidia-nccl-cu13`.
///
/// Without it the test is skipped.
const REAL: &str = "BURN_DDP_TEST_NCCL";

#[test]
fn the_real_library_loads_and_fails_cleanly_without_a_gpu() {
    #[derive(Debug)]
    struct NoDevice;
    impl Stream for NoDevice {
        fn handle(&self) -> *mut c_void {
            std::ptr::null_mut()
        }
        fn enter(&self) -> Result<()> {
            Ok(())
        }
        fn wait_for_device(&self) -> Result<()> {
            unreachable!("there is no communicator")
        }
        fn record_event(self: Arc<Self>) -> Result<Arc<dyn Event>> {
            unreachable!("there is no communicator")
        }
        fn orders_device(&self) -> bool {
            true
        }
    }
    let Some(path) = std::env::var_os(REAL) else { return };
    if std::path::Path::new("/dev/nvidia0").exists() {
        return;
    }
    let library = Library::first_of(&[path.into()]).expect("a libnccl");
    println!("{library}");
    let id = library.unique_id().expect("an id");
    let (world, stream) = (World { rank: 0, size: 2 }, Arc::new(NoDevice) as Arc<dyn Stream>);
    let begun = Instant::now();
    let made = NcclCommunicator::init(library, &id, world, &stream, Duration::from_secs(60));
    let error = made.expect_err("there is no GPU").to_string();
    assert!(error.contains("cuda error") && error.contains("driver"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(30));
}
