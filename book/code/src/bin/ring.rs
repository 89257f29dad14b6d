//! Course, chapter "How all-reduce works": a ring all-reduce among threads, which prints every step.

use clap::Parser;
use std::{
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};

/// Sums the vectors of several threads with a ring all-reduce.
#[derive(Parser)]
struct Args {
    /// Number of ranks
    #[arg(default_value_t = 4)]
    ranks: usize,
}

// ANCHOR: ring
/// Sums `parts`, one number per part and rank, over a ring of `n` ranks: after 2(n − 1) steps every rank has all sums.
fn all_reduce(
    rank: usize,
    n: usize,
    parts: &mut [f32],
    right: &Sender<f32>,
    left: &Receiver<f32>,
) -> usize {
    let mut sent = 0;
    // Reduce-scatter: after n − 1 steps, rank r holds the sum of part r + 1.
    for step in 0..n - 1 {
        let _ = right.send(parts[(rank + n - step) % n]);
        parts[(rank + 2 * n - step - 1) % n] += left.recv().unwrap_or(f32::NAN);
        sent += 1;
    }
    // All-gather: each finished part travels once around the ring.
    for step in 0..n - 1 {
        let _ = right.send(parts[(rank + 1 + n - step) % n]);
        parts[(rank + n - step) % n] = left.recv().unwrap_or(f32::NAN);
        sent += 1;
    }
    sent
}
// ANCHOR_END: ring

fn main() {
    let n = Args::parse().ranks.max(1);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..n).map(|_| channel()).unzip();
    // Rank r receives from its left neighbour r − 1, so it sends into the channel of rank r + 1.
    let mut receivers: Vec<_> = receivers.into_iter().map(Some).collect();
    let ranks: Vec<_> = (0..n)
        .filter_map(|rank| {
            Some((rank, senders[(rank + 1) % n].clone(), receivers[rank].take()?))
        })
        .map(|(rank, right, left)| {
            thread::spawn(move || {
                let mut parts: Vec<f32> =
                    (0..n).map(|part| (10 * rank + part) as f32).collect();
                let before = parts.clone();
                let sent = all_reduce(rank, n, &mut parts, &right, &left);
                format!(
                    "rank {rank}: {before:?} -> {parts:?}, {sent} of {n} parts sent"
                )
            })
        })
        .collect();
    for rank in ranks {
        println!("{}", rank.join().unwrap_or_else(|_| "a rank failed".into()));
    }
}
