//! Where a job's ranks are, and how a group of them gets its transport.

use super::inner::Parts;
use crate::{
    Error, Options, Result,
    communicator::{Communicator, Solo},
    rendezvous::{Arbiter, control::Control},
    transport::{
        Transport,
        tcp::{Switchboard, Tcp},
    },
};
use std::sync::Arc;

/// What the groups of one rank share.
#[derive(Debug)]
pub(super) enum Site {
    /// A world of one.
    Solo(Options),
    /// Processes that have met.
    Processes { control: Arc<Control>, switchboard: Arc<Switchboard>, options: Options },
}

impl Site {
    fn options(&self) -> &Options {
        match self {
            Site::Solo(options) | Site::Processes { options, .. } => options,
        }
    }

    /// The group of this rank alone.
    pub fn solo(self: &Arc<Self>) -> Parts {
        self.parts(0, vec![0], 0, Box::new(Solo), None)
    }

    /// A group of `members`, given by world rank, in which this rank is number `rank`.
    pub fn open(self: &Arc<Self>, group: u64, members: Vec<usize>, rank: usize) -> Result<Parts> {
        let (comm, arbiter): (Box<dyn Communicator>, Option<Arc<dyn Arbiter>>) = match self.as_ref() {
            Site::Solo(_) => (Box::new(Solo), None),
            Site::Processes { control, .. } if members.len() == 1 => (Box::new(Solo), Some(control.clone())),
            Site::Processes { control, switchboard, options } => {
                let comm = processes(group, &members, rank, control, switchboard, options.transport)?;
                (comm, Some(control.clone()))
            }
        };
        Ok(self.parts(group, members, rank, comm, arbiter))
    }

    fn parts(
        self: &Arc<Self>,
        group: u64,
        members: Vec<usize>,
        rank: usize,
        comm: Box<dyn Communicator>,
        arbiter: Option<Arc<dyn Arbiter>>,
    ) -> Parts {
        let Options { timeout, flight_folder, .. } = self.options().clone();
        Parts {
            group,
            members,
            rank,
            comm,
            direct: None,
            arbiter,
            timeout,
            flight_folder,
            site: self.clone(),
        }
    }
}

fn processes(
    group: u64,
    members: &[usize],
    rank: usize,
    control: &Control,
    switchboard: &Arc<Switchboard>,
    transport: Transport,
) -> Result<Box<dyn Communicator>> {
    match transport {
        Transport::Auto | Transport::Tcp => {
            let addresses = members.iter().map(|member| (*member, control.members()[*member].data)).collect();
            Ok(Box::new(Tcp::new(switchboard.clone(), group, rank, addresses)))
        }
        other @ (Transport::Thread | Transport::Shm) => {
            Err(Error::Invalid(format!("transport {other} is not in this build; choose auto or tcp")))
        }
    }
}
