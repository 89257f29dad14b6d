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

/// The sum of `value` over a block of threads, which all receive it. `sums` has an element per thread.
#[cube]
pub(super) fn block_sum(value: f32, sums: &mut [f32]) -> f32 {
    let thread = UNIT_POS as usize;
    // All threads have read the previous sum.
    sync_cube();
    sums[thread] = value;
    let mut half = CUBE_DIM as usize / 2;
    while half > 0 {
        sync_cube();
        if thread < half {
            sums[thread] += sums[thread + half];
        }
        half /= 2;
    }
    sync_cube();
    sums[0]
}
