//! The control plane's messages.

use crate::{Error, communicator::Call};
use serde::{Deserialize, Serialize};
use std::{collections::HashMap, net::SocketAddr};

/// Version of these messages and of the data between ranks. Different versions refuse each other.
pub(crate) const PROTOCOL: u32 = 7;

/// This machine's byte order, in which tensor data is sent.
pub(crate) const BYTE_ORDER: &str = if cfg!(target_endian = "little") { "Little" } else { "Big" };

/// The first message of a rank. Its format is the same in every version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub rank: usize,
    /// As [`PROTOCOL`].
    pub protocol: u32,
    /// As [`BYTE_ORDER`].
    pub byte_order: String,
    /// The job's id, if it has one.
    pub job: Option<String>,
}

impl Hello {
    /// The message of rank `rank` of the job `job` in this build.
    pub fn new(rank: usize, job: Option<String>) -> Self {
        Hello { rank, protocol: PROTOCOL, byte_order: BYTE_ORDER.into(), job }
    }
}

/// Address and identity of a joining rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PeerInfo {
    /// Address of its data listener.
    pub data: SocketAddr,
    /// Its host name, for messages.
    pub host: String,
    /// Ranks with equal `machine` are on one machine.
    pub machine: String,
    pub pid: u32,
    /// Its `--transport`, which must be the same on all ranks.
    pub transport: String,
}

/// Address of the data listener, and number of the machine, of every rank. All ranks receive it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Members(Vec<(SocketAddr, u32)>);

impl Members {
    /// The members with these addresses, in rank order.
    pub fn new<'a>(members: impl Iterator<Item = &'a PeerInfo>) -> Self {
        let mut machines = HashMap::new();
        let numbered = |member: &'a PeerInfo| {
            let next = machines.len() as u32;
            (member.data, *machines.entry(&member.machine).or_insert(next))
        };
        Members(members.map(numbered).collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Address of a rank's data listener.
    pub fn data(&self, rank: usize) -> SocketAddr {
        self.0[rank].0
    }

    /// Number of a rank's machine.
    pub fn machine(&self, rank: usize) -> u32 {
        self.0[rank].1
    }
}

/// A rank's position in a group and its family, as the answer to an inquiry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// Its call with the requested number, if it has made and still keeps it.
    pub asked: Option<Call>,
    /// Number of its last collective in the group, kept or not, or of the last message between the two ranks.
    pub seq: u64,
    /// Its last call.
    pub last: Option<Call>,
    /// Whether it is still inside that last call.
    pub inside: bool,
    /// Whether it has destroyed or dropped the group.
    pub closed: bool,
    /// The call in a group of the family in which it waits.
    pub waits: Option<PendingCall>,
    /// Its progress in every group of the family.
    pub family: Vec<GroupProgress>,
}

/// The call in which a rank's thread waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PendingCall {
    pub group: u64,
    /// Description of the group, for messages.
    pub label: String,
    pub call: Call,
    /// Whether it is a message between two ranks.
    pub direct: bool,
}

/// How far a rank has come in a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupProgress {
    pub group: u64,
    /// Number of its last collective.
    pub seq: u64,
    /// Whether no call is queued or in progress, also not in the background.
    pub idle: bool,
}

/// A call that has waited for long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stall {
    pub group: u64,
    /// World ranks of the group; empty if these are all ranks.
    pub members: Vec<usize>,
    pub call: Call,
    /// World ranks of sender and receiver of a message, which is not numbered among the collectives.
    pub message: Option<(usize, usize)>,
    pub seconds: f64,
    /// The deadline has passed: a diagnosis is due now.
    pub expired: bool,
}

/// What identifies a call: group, number, and sender and receiver of a message.
pub(crate) type CallKey = (u64, u64, Option<(usize, usize)>);

impl Stall {
    pub fn key(&self) -> CallKey {
        (self.group, self.call.seq, self.message)
    }
}

/// Message from a rank to the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// First message of a rank.
    Hello(Hello),
    /// Second message of a rank.
    Join {
        rank: usize,
        world: usize,
        member: PeerInfo,
    },
    /// The rendezvous exceeded this rank's time limit.
    Late {
        seconds: f64,
    },
    Set {
        key: String,
        value: Vec<u8>,
    },
    /// Answered at once or, with `wait`, when the key is set.
    Get {
        id: u64,
        key: String,
        wait: bool,
    },
    Delete {
        key: String,
    },
    /// This rank has failed.
    Report {
        error: Error,
    },
    Stall(Stall),
    /// Answer to [`Event::Where`].
    Here {
        inquiry: u64,
        place: Place,
    },
    /// This rank exits cleanly, after these last calls: group and number.
    Goodbye {
        calls: Vec<(u64, u64)>,
    },
}

/// Message from the server to a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Event {
    /// All ranks have joined.
    Welcome {
        members: Members,
    },
    Value {
        id: u64,
        value: Option<Vec<u8>>,
    },
    Where {
        inquiry: u64,
        group: u64,
        seq: u64,
        message: Option<(usize, usize)>,
    },
    /// A rank has exited cleanly.
    Left {
        rank: usize,
    },
    /// The job has failed; this is the first cause.
    Poison {
        error: Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_with_equal_machines_have_its_number() {
        let member = |data: &str, machine: &str| PeerInfo {
            data: data.parse().unwrap(),
            host: "node".into(),
            machine: machine.into(),
            pid: 1,
            transport: "auto".into(),
        };
        // Two machines share an address, and the first machine has two.
        let infos = [("127.0.0.1:1", "a"), ("127.0.0.1:2", "b"), ("[::1]:3", "a")];
        let infos = infos.map(|(data, machine)| member(data, machine));
        let members = Members::new(infos.iter());
        for (rank, info) in infos.iter().enumerate() {
            assert_eq!(members.data(rank), info.data);
        }
        assert_eq!([0, 1, 2].map(|rank| members.machine(rank)), [0, 1, 0]);
    }
}
