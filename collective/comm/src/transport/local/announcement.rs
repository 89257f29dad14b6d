//! A rank's current call in shared memory, so that peers can compare.

use crate::transport::{header, method::MethodCall};
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of words; room for a name of 40 letters.
const WORDS: usize = 8;

/// The header of a call, as it was published at one moment.
pub type Announced = [u8; 8 * WORDS];

/// The header of a call in shared words, readable by every rank.
#[repr(C)]
#[derive(Debug)]
pub struct Announcement([AtomicU64; WORDS]);

impl Announcement {
    pub fn publish(&self, call: MethodCall<'_>) {
        let words: [u64; WORDS] = bytemuck::cast::<Announced, _>(header::encode(call));
        for (shared, word) in self.0.iter().zip(words) {
            shared.store(word, Ordering::Relaxed);
        }
    }

    pub fn read(&self) -> Announced {
        bytemuck::cast::<[u64; WORDS], _>(std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed)))
    }
}
