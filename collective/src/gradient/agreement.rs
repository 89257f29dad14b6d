//! What the ranks agree on in a step: its flags, the use of parameters, and whether it must be repeated.

use crate::{Error, Result, Work};

/// A rank's message about a step.
pub(super) struct Message {
    /// The caller's flags.
    pub flags: Vec<f32>,
    /// 1 for each parameter with a gradient of real samples, for a rank with samples, and for a reason to repeat the
    /// step.
    pub users: Vec<f32>,
    /// Reason why this rank's sums differ from those of the gradients that backward returned.
    pub spoiled: Option<String>,
}

/// The sums of all ranks' messages, which may still be in progress.
#[derive(Debug)]
pub(crate) struct Agreement {
    sums: Sums,
    flags: usize,
    ranks: usize,
    spoiled: Option<String>,
    /// Whether this rank has a gradient of every parameter and no reason to repeat the step.
    complete: bool,
}

#[derive(Debug)]
enum Sums {
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

impl Message {
    fn values(&self) -> Vec<f32> {
        [&*self.flags, &*self.users].concat()
    }
}

impl Agreement {
    /// The sums in `summed`, in a group of `ranks`.
    pub(super) fn known(summed: Message, ranks: usize) -> Self {
        let sums = Sums::Known(summed.values());
        Self { sums, flags: summed.flags.len(), ranks, spoiled: summed.spoiled, complete: false }
    }

    /// Starts to sum the messages of `ranks` ranks.
    ///
    /// # Errors
    /// If `start` fails.
    pub(super) fn start(
        message: Message,
        ranks: usize,
        start: impl FnOnce(Vec<f32>) -> Result<Work<Vec<f32>>>,
    ) -> Result<Self> {
        let sums = Sums::InProgress(start(message.values())?);
        let Message { flags, users, spoiled } = message;
        let used = &users[..users.len() - 1];
        let complete = spoiled.is_none() && used.iter().all(|used| *used > 0.0);
        Ok(Self { sums, flags: flags.len(), ranks, spoiled, complete })
    }

    /// Whether the step's gradients are known without the other ranks' messages.
    ///
    /// Every parameter then has a gradient. Another rank's reason to repeat the step is an error: see
    /// [`Agreed::unanimous`].
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Waits for the sums.
    ///
    /// # Errors
    /// If the group fails.
    pub(super) fn wait(self) -> Result<Agreed> {
        let Self { sums, flags, ranks, spoiled, .. } = self;
        let mut sums = match sums {
            Sums::Known(sums) => sums,
            Sums::InProgress(work) => work.wait()?,
        };
        let mut users: Vec<usize> = sums.split_off(flags).into_iter().map(|ranks| ranks as usize).collect();
        let again = users.pop().filter(|again| *again > 0);
        let reason = || spoiled.unwrap_or_else(|| "another rank could not overlap".into());
        Ok(Agreed { flags: sums, users, again: again.map(|again| (reason(), again)), ranks })
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
