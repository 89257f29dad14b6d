//! Random numbers that are equal on every machine and in every version of this program.

use super::Split;
use collective::sampler::mix;

/// A SplitMix64 stream, independent of library versions.
pub struct Rng {
    seed: u64,
    drawn: u64,
}

impl Rng {
    /// Creates the stream of one image.
    pub fn stream(seed: u64, split: Split, index: u64) -> Self {
        let part = match split {
            Split::Train => 1,
            Split::Test => 2,
        };
        let seed = [part, index].into_iter().fold(seed, |seed, word| mix(seed, 0) ^ word);
        Rng { seed: mix(seed, 0), drawn: 0 }
    }

    fn next(&mut self) -> u64 {
        let value = mix(self.seed, self.drawn);
        self.drawn += 1;
        value
    }

    /// Returns a uniform integer in 0..limit.
    pub fn below(&mut self, limit: u32) -> u32 {
        (((self.next() >> 32) * u64::from(limit)) >> 32) as u32
    }

    /// Returns a uniform number in low..high.
    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * (self.next() >> 40) as f32 / (1 << 24) as f32
    }

    /// Returns a nearly standard normal number, from the sum of four 16-bit uniforms.
    pub fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum: u64 = (0..4).map(|i| (bits >> (16 * i)) & 0xffff).sum();
        // The sum of four uniforms on 0..65536 has mean 131070 and standard deviation 65536/√3.
        (sum as f32 - 131_070.0) * (1.732_050_8 / 65_536.0)
    }
}
