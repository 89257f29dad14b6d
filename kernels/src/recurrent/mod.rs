//! Parts that recurrent layers share.

mod packed;

pub use packed::Packed;

/// Sequences per part of the work. Independent of the number of threads, as is the order of sums.
pub const SEQUENCES: usize = 8;

/// Time steps in the order of the recurrence.
pub fn steps(time: usize, reverse: bool) -> impl DoubleEndedIterator<Item = usize> {
    (0..time).map(move |step| if reverse { time - 1 - step } else { step })
}

/// Time step before `step` in the order of the recurrence; `None` before the first.
pub fn previous(step: usize, time: usize, reverse: bool) -> Option<usize> {
    if reverse { Some(step + 1).filter(|step| *step < time) } else { step.checked_sub(1) }
}

/// Rows of a step, `[x | state]`: inputs and the hidden state before the step, `[batch × time, inputs + hidden]`.
pub fn joined(
    [x, states, initial]: [&[f32]; 3],
    [batch, time]: [usize; 2],
    [inputs, hidden]: [usize; 2],
    reverse: bool,
) -> Vec<f32> {
    let mut rows = Vec::with_capacity(batch * time * (inputs + hidden));
    for sequence in 0..batch {
        for step in 0..time {
            rows.extend_from_slice(&x[(sequence * time + step) * inputs..][..inputs]);
            rows.extend_from_slice(match previous(step, time, reverse) {
                Some(step) => &states[(sequence * time + step) * hidden..][..hidden],
                None => &initial[sequence * hidden..][..hidden],
            });
        }
    }
    rows
}
