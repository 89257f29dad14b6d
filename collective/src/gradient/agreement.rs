//! What the ranks agree on in a step: its flags, the use of parameters, and whether it must be repeated.

use crate::{Error, Result, Work};

/// The sums of all ranks' messages about a step, which may still be in progress.
///
/// A message has the caller's flags, and then 1 for each parameter with a gradient of real samples, for a rank with
/// samples, and for a reason to repeat the step.
#[derive(Debug)]
pub(crate) struct Agreement {
    sums: Sums,
    flags: usize,
    ranks: usize,
    /// Reason why this rank's sums differ from those of the gradients that backward returned.
    spoiled: Option<String>,
    /// Whether this rank has a gradient of every parameter and no reason to repeat the step.
    ///
    /// The step's gradients are then known without the other ranks' messages. Another rank's reason to repeat the step
    /// is an error: see [`Agreed::unanimous`].
    pub(super) complete: bool,
}

#[derive(Debug)]
pub(super) enum Sums {
    Known(Vec<f32>),
    InProgress(Work<Vec<f32>>),
}

/// The outcome of an [`Agreement`].
pub(super) struct Agreed {
    /// Sums of the caller's flags.
    pub flags: Vec<f32>,
    /// Number of ranks on which each parameter had a gradient of real samples, and last that of the ranks with samples.
    pub users: Vec<usize>,
    /// Reason to repeat the step, and the number of ranks that have one.
    pub again: Option<(String, usize)>,
    ranks: usize,
}

impl Agreement {
    /// `users` follow the `flags` in this rank's message, and `spoiled` is its reason to repeat the step.
    pub(super) fn new(
        sums: Sums,
        flags: usize,
        users: &[f32],
        spoiled: Option<String>,
        ranks: usize,
    ) -> Self {
        let used = &users[..users.len().saturating_sub(1)];
        let complete = spoiled.is_none() && used.iter().all(|used| *used > 0.0);
        Self { sums, flags, ranks, spoiled, complete }
    }

    /// The flags of a step in a world of one.
    pub(super) fn alone(flags: Vec<f32>) -> Self {
        Self::new(Sums::Known(flags.clone()), flags.len(), &[], None, 1)
    }

    /// Whether [`wait`](Self::wait) returns at once.
    pub(crate) fn is_known(&self) -> bool {
        matches!(self.sums, Sums::Known(_))
    }

    /// Waits for the sums.
    ///
    /// # Errors
    /// If the group fails.
    pub(super) fn wait(&mut self) -> Result<Agreed> {
        let mut sums = match std::mem::replace(&mut self.sums, Sums::Known(Vec::new())) {
            Sums::Known(sums) => sums,
            Sums::InProgress(work) => work.wait()?,
        };
        self.sums = Sums::Known(sums.clone());
        let mut users: Vec<usize> =
            sums.split_off(self.flags).into_iter().map(|ranks| ranks as usize).collect();
        let again = users.pop().filter(|again| *again > 0);
        let reason = || self.spoiled.clone().unwrap_or_else(|| "another rank could not overlap".into());
        Ok(Agreed { flags: sums, users, again: again.map(|again| (reason(), again)), ranks: self.ranks })
    }
}

impl Agreed {
    /// Verifies that all ranks repeat the step, or none.
    ///
    /// # Errors
    /// If only some ranks do, the others have used sums that differ from their gradients.
    pub fn unanimous(&self) -> Result<()> {
        match &self.again {
            Some((reason, ranks)) if *ranks < self.ranks => Err(Error::Invalid(format!(
                "{reason}, on {ranks} of {} ranks, for the first time in a later step than the first: disable overlap (--no-overlap)",
                self.ranks
            ))),
            Some(_) | None => Ok(()),
        }
    }
}
