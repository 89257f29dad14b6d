//! A rank's current call in shared memory, so that peers can compare.

use crate::transport::header::{HEADER, Header};
use std::sync::atomic::{AtomicU64, Ordering};

const WORDS: usize = HEADER / 8;

/// The header of a call in shared words, readable by every rank.
#[repr(C)]
#[derive(Debug)]
pub struct Announcement([AtomicU64; WORDS]);

impl Announcement {
    pub fn publish(&self, header: Header) {
        let words: [u64; WORDS] = bytemuck::cast(header);
        self.0.iter().zip(words).for_each(|(shared, word)| shared.store(word, Ordering::Relaxed));
    }

    /// The header as it was published at one moment.
    pub fn read(&self) -> Header {
        bytemuck::cast::<[u64; WORDS], _>(std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed)))
    }
}
