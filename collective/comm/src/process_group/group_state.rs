//! State of a group that the control plane watches: members, call counters, flight recorder, abort. The family of the
//! group and its duplicates.

use super::{
    flight_recorder::{Endpoints, FlightRecord, FlightRecorder, microseconds},
    ticket_queue::TicketQueue,
};
use crate::{
    Error, Options,
    communicator::{Call, Communicator, World},
    rendezvous::{
        GroupProbe,
        wait::Report,
        wire::{GroupProgress, PendingCall, Place, Stall},
    },
    sync::lock,
    transport::nccl::{DeviceSite, NcclWorker},
};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, Once, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, ThreadId},
    time::{Duration, SystemTime},
};

/// A group's device and the NCCL communicator on it.
pub(super) struct DeviceTransport {
    pub site: Arc<dyn DeviceSite>,
    pub worker: NcclWorker,
    pub order: Arc<TicketQueue>,
}

/// The part of a group that the control plane watches.
///
/// It does not own the connection to the server: dropping the last reference to a group leaves the job, which must not
/// happen on the connection's own thread.
pub(super) struct GroupState {
    /// 0 for the group of all ranks.
    pub group: u64,
    /// Description for messages.
    label: String,
    pub family: Arc<Family>,
    pub queue: Arc<TicketQueue>,
    /// Number of waits of the user's threads in calls.
    waits: AtomicUsize,
    /// World rank of every rank of the group.
    pub members: Vec<usize>,
    pub world: World,
    pub comm: Box<dyn Communicator>,
    /// Set by [`ProcessGroup::attach`](super::ProcessGroup::attach).
    pub device: OnceLock<DeviceTransport>,
    /// Number of the last collective.
    pub seq: Arc<AtomicU64>,
    /// Number of the last message from one rank of the group to another.
    messages: Mutex<HashMap<Endpoints, u64>>,
    pub recorder: FlightRecorder,
    pub options: Options,
    recorded: Once,
    /// Whether the group was destroyed on this rank.
    pub destroyed: AtomicBool,
}

impl GroupState {
    /// The state of rank `rank` in a group of `members`, given by world rank.
    ///
    /// A duplicate has the label and family of `duplicate`.
    pub fn new(
        group: u64,
        members: Vec<usize>,
        rank: usize,
        comm: Box<dyn Communicator>,
        options: &Options,
        duplicate: Option<(String, Arc<Family>)>,
    ) -> Self {
        let label = match group {
            0 => "the group of all ranks".into(),
            group => format!("group {group:016x}"),
        };
        let (label, family) = duplicate.unwrap_or((label, Arc::default()));
        GroupState {
            label,
            family,
            queue: Arc::default(),
            waits: AtomicUsize::new(0),
            world: World { rank, size: members.len() },
            group,
            members,
            comm,
            device: OnceLock::new(),
            seq: Arc::default(),
            messages: Mutex::default(),
            recorder: FlightRecorder::default(),
            options: options.clone(),
            recorded: Once::new(),
            destroyed: AtomicBool::new(false),
        }
    }

    /// Number of the last collective made.
    pub fn last_seq(&self) -> u64 {
        self.seq.load(Ordering::Relaxed)
    }

    /// Counts a new collective and returns its number.
    pub fn next_seq(&self) -> u64 {
        self.seq.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Counts a new message and returns its number.
    pub fn next_message(&self, endpoints: Endpoints) -> u64 {
        let mut messages = lock(&self.messages);
        let seq = messages.entry(endpoints).or_default();
        *seq += 1;
        *seq
    }

    /// Describes a call that has waited for `waited`, for the control plane.
    pub fn stall(&self, call: &Call, message: Option<Endpoints>, waited: Duration, expired: bool) -> Stall {
        let own = self.members[self.world.rank];
        let members = match message {
            Some((from, to)) => vec![if from == own { to } else { from }],
            None => self.members.clone(),
        };
        Stall {
            group: self.group,
            members,
            call: call.clone(),
            message,
            seconds: waited.as_secs_f64(),
            expired,
        }
    }

    /// Marks the current thread of the user as waiting in a call until the guard is dropped.
    pub fn wait(self: &Arc<Self>) -> Waiting {
        self.family.enter();
        self.waits.fetch_add(1, Ordering::SeqCst);
        Waiting(self.clone())
    }

    /// The call in progress, if a thread of the user waits for it.
    pub fn waits(&self) -> Option<PendingCall> {
        let (call, message) = self.recorder.pending()?;
        let (group, label, direct) = (self.group, self.label.clone(), message.is_some());
        let waits = self.waits.load(Ordering::SeqCst) > 0;
        waits.then_some(PendingCall { group, label, call, direct })
    }

    pub fn progress(&self) -> GroupProgress {
        GroupProgress { group: self.group, idle: self.queue.is_idle(), seq: self.last_seq() }
    }

    /// Writes the flight record, once, if a folder is configured. A failure to write it is a warning, so that it
    /// does not replace the error that the record is about.
    pub fn write_flight_record(&self, error: &Error) {
        let Some(folder) = &self.options.flight_folder else { return };
        self.recorded.call_once(|| {
            let record = FlightRecord {
                rank: self.members[self.world.rank],
                members: self.members.clone(),
                group: self.group,
                host: crate::rendezvous::host(),
                pid: std::process::id(),
                written_us: microseconds(SystemTime::now()),
                error: error.cause().to_string(),
                calls: self.recorder.calls(),
            };
            if let (Err(error), Some(Report(report))) = (record.write(folder), &self.options.report) {
                report(&error);
            }
        });
    }
}

/// The groups of a family on this rank: a group and its duplicates.
#[derive(Debug, Default)]
pub(super) struct Family(Mutex<FamilyState>);

#[derive(Debug, Default)]
struct FamilyState {
    groups: Vec<Weak<GroupState>>,
    /// The thread that waits in calls of these groups; `None` before the first call.
    thread: Option<ThreadId>,
    /// Whether several threads do. One may then call while another waits, so that no wait is conclusive.
    several_threads: bool,
}

impl Family {
    pub fn add(&self, group: &Arc<GroupState>) {
        let mut state = lock(&self.0);
        state.groups.retain(|group| group.strong_count() > 0);
        state.groups.push(Arc::downgrade(group));
    }

    /// Registers the current thread as one that waits in calls.
    pub fn enter(&self) {
        let mut state = lock(&self.0);
        let current = thread::current().id();
        state.several_threads |= *state.thread.get_or_insert(current) != current;
    }

    /// The call in which this rank's thread waits, and the progress of each group.
    pub fn position(&self) -> (Option<PendingCall>, Vec<GroupProgress>) {
        let state = lock(&self.0);
        let groups: Vec<_> = state.groups.iter().filter_map(Weak::upgrade).collect();
        let conclusive = !state.several_threads;
        drop(state);
        // The wait is read first: while it lasts, no call begins in another group.
        let waits = groups.iter().filter(|_| conclusive).find_map(|group| group.waits());
        (waits, groups.iter().map(|group| group.progress()).collect())
    }
}

/// Guard of a wait in a call.
pub(super) struct Waiting(Arc<GroupState>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waits.fetch_sub(1, Ordering::SeqCst);
    }
}

impl GroupProbe for GroupState {
    fn place(&self, seq: u64, message: Option<Endpoints>) -> Place {
        let (waits, family) = self.family.position();
        let last = match message {
            Some(ends) => lock(&self.messages).get(&ends).copied().unwrap_or(0),
            None => self.last_seq(),
        };
        Place { closed: self.closed(), waits, family, ..self.recorder.place(seq, message, last) }
    }

    fn stalled(&self) -> Option<Stall> {
        let (call, message, waited) = self.recorder.stalled()?;
        Some(self.stall(&call, message, waited, false))
    }

    fn closed(&self) -> bool {
        self.destroyed.load(Ordering::Acquire)
    }

    fn abort(&self) {
        self.comm.abort();
        if let Some(attached) = self.device.get() {
            attached.worker.abort();
        }
    }

    fn record(&self, cause: &Error) {
        // A rank inside a call writes its record when the call has returned.
        if self.recorder.pending().is_none() {
            self.write_flight_record(cause);
        }
    }
}
