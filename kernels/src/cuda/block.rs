//! Blocks of threads.

use burn_cubecl::cubecl::{self, prelude::*};

/// Threads of a block.
pub(super) const THREADS: usize = 256;

/// The dimension of a block.
pub(super) fn dim() -> CubeDim {
    CubeDim::new_1d(THREADS as u32)
}

/// The grid of a launch of `blocks` blocks.
pub(super) fn blocks(blocks: usize) -> CubeCount {
    CubeCount::Static(blocks as u32, 1, 1)
}

/// The grid of a launch with a thread for each of `elements`.
pub(super) fn blocks_for(elements: usize) -> CubeCount {
    blocks(elements.div_ceil(THREADS))
}

/// The dimension of a block that reads a row of `length` elements, and its number of threads, a power of two.
pub(super) fn dim_for(length: usize) -> (CubeDim, usize) {
    let threads = length.next_power_of_two().clamp(32, THREADS);
    (CubeDim::new_1d(threads as u32), threads)
}

/// The sum of `value` over a block of threads, which all receive it. `shared` has an element per thread.
#[cube]
pub(super) fn block_sum(value: f32, shared: &mut [f32]) -> f32 {
    block_fold(value, shared, false)
}

/// The largest `value` of a block of threads, which all receive it. `shared` has an element per thread.
#[cube]
pub(super) fn block_max(value: f32, shared: &mut [f32]) -> f32 {
    block_fold(value, shared, true)
}

#[cube]
fn block_fold(value: f32, shared: &mut [f32], #[comptime] largest: bool) -> f32 {
    let thread = UNIT_POS as usize;
    // All threads have read the previous result.
    sync_cube();
    shared[thread] = value;
    let mut half = CUBE_DIM as usize / 2;
    while half > 0 {
        sync_cube();
        if thread < half {
            let other = shared[thread + half];
            if comptime![largest] {
                shared[thread] = max(shared[thread], other);
            } else {
                shared[thread] += other;
            }
        }
        half /= 2;
    }
    sync_cube();
    shared[0]
}
