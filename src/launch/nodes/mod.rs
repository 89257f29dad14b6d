//! Several machines: their launchers meet at node 0's, begin each round together, and end it with
//! one verdict. A node's launcher talks to the [`Hub`] through its [`Agent`].

mod agent;
mod hub;
mod table;

pub use agent::{Agent, Begin};
pub use hub::Hub;
pub use table::Rules;

use super::ending::Ending;
use serde::{Deserialize, Serialize};

/// What a launcher tells the hub.
#[derive(Debug, Serialize, Deserialize)]
enum ToHub {
    /// It is ready for the next round.
    Join(Join),
    /// How the round with this number ended on its machine. One of an old round is ignored.
    Ended { restarts: usize, ending: Ending },
}

/// A machine that wants to take part.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Join {
    /// Its `--node-rank`.
    node: usize,
    /// Ranks it will start.
    ranks: usize,
    host: String,
}

/// What the hub tells a launcher.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum FromHub {
    /// All have come.
    Begin(Begin),
    /// The round is over.
    End { restarts: usize, ending: Ending },
    /// This launcher cannot take part, or there will be no round.
    Refused(String),
}
