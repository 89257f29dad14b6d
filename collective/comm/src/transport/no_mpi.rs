//! Replaces MPI in a build without it: every function fails.

use crate::{Communicator, Error, Result, Secret, World};
use std::{net::SocketAddr, time::Duration};

macro_rules! refused {
    ($($function:ident($($argument:ty),*) -> $result:ty;)*) => { $(
        pub(crate) fn $function($(_: $argument),*) -> Result<$result> {
            Err(Error::Invalid(
                "this program was built without MPI; build it with the feature `mpi`, or choose another transport and init method".into(),
            ))
        }
    )* };
}

refused! {
    world() -> World;
    address(Duration) -> String;
    publish(&Result<(SocketAddr, Secret)>, Duration) -> ();
    look_up(Duration) -> (String, Secret);
    connect(u64, &[usize], usize, Duration) -> Box<dyn Communicator>;
}
