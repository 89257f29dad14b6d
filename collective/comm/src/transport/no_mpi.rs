//! Replaces MPI in a build without it: every function fails.

use crate::{Communicator, Error, Result, Secret, World};
use std::{net::SocketAddr, time::Duration};

fn refuse<T>() -> Result<T> {
    Err(Error::Invalid(
        "this program was built without MPI; build it with the feature `mpi`, or choose another transport and init method".into(),
    ))
}

pub(crate) fn world() -> Result<World> {
    refuse()
}

pub(crate) fn address(_timeout: Duration) -> Result<String> {
    refuse()
}

pub(crate) fn publish(_word: &Result<(SocketAddr, Secret)>, _timeout: Duration) -> Result<()> {
    refuse()
}

pub(crate) fn look_up(_timeout: Duration) -> Result<(String, Secret)> {
    refuse()
}

pub(crate) fn connect(
    _group: u64,
    _members: &[usize],
    _rank: usize,
    _timeout: Duration,
) -> Result<Box<dyn Communicator>> {
    refuse()
}
