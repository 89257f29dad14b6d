//! Ranks that enter different methods with one and the same call, and worlds of very many ranks.

use super::*;
use crate::{Call, DType, Error, ReduceOp, Secret};
use std::{net::Ipv4Addr, thread, time::Duration};

/// Ranks, each of which dials or is dialled when it first calls.
fn world(size: usize, algorithm: Option<Algorithm>) -> Vec<Tcp> {
    let secret = Secret::new("a secret for tests").unwrap();
    let start =
        |rank| Arc::new(ConnectionPool::start(Ipv4Addr::LOCALHOST.into(), rank, secret.clone()).unwrap());
    let pools: Vec<_> = (0..size).map(start).collect();
    let members: Vec<_> = pools.iter().map(|one| one.address()).enumerate().collect();
    let rank =
        |(rank, pool): (usize, Arc<ConnectionPool>)| Tcp::new(pool, 0, rank, members.clone(), algorithm);
    pools.into_iter().enumerate().map(rank).collect()
}

#[test]
fn two_methods_under_one_name_are_a_mismatch_on_both_ranks() {
    type Act = fn(&Tcp, &Call, &mut [u8]) -> Result<()>;
    let others: [(&str, Act); 4] = [
        ("all_gather", |tcp, call, mine| tcp.all_gather(call, mine, &mut [&*mine; 2].concat())),
        ("barrier", |tcp, call, _| tcp.barrier(call)),
        ("broadcast", |tcp, call, mine| tcp.broadcast(call, mine)),
        ("reduce_scatter", |tcp, call, mine| tcp.reduce_scatter(call, mine)),
    ];
    let cases = [(4, None), (100_000, None), (100_000, Some(Algorithm::Chain))];
    for (name, other) in others {
        for (count, algorithm) in cases {
            let call = Call::new("exchange", DType::F32, count).reduce(ReduceOp::Sum).root(0);
            let call = call.numbered(1, Duration::from_secs(60));
            let ranks = world(2, algorithm);
            let results = thread::scope(|scope| {
                let one = scope.spawn(|| other(&ranks[1], &call, &mut vec![0; 4 * count]));
                [ranks[0].all_reduce(&call, &mut vec![0; 4 * count]), one.join().unwrap()]
            });
            for (rank, result) in results.into_iter().enumerate() {
                let Err(Error::Mismatch { rank_a, call_a, rank_b, call_b }) = result else {
                    panic!("all_reduce with {name} of {count}, rank {rank}: {result:?}");
                };
                let mut sides = [(rank_a, call_a), (rank_b, call_b)];
                sides.sort();
                let through = |name| format!("{call} through {name}");
                assert_eq!(sides, [(0, through("all_reduce")), (1, through(name))]);
            }
        }
    }
}

/// Bytes of rank `rank`: different elements on every rank, exact in f32.
fn values(rank: usize, count: usize) -> Vec<u8> {
    (0..count).flat_map(|i| ((i % 61 + 100 * rank) as f32).to_ne_bytes()).collect()
}

#[test]
fn worlds_beyond_pairs_connect_each_rank_to_its_neighbours() {
    for (size, count) in [(2, 20_000), (5, 50_000)] {
        let ranks = world(size, Some(Algorithm::Chain)).into_iter().map(|rank| Tcp { paired: 1, ..rank });
        let ranks: Vec<_> = ranks.collect();
        let sum =
            (0..count).flat_map(|i| ((i % 61 * size + 100 * (0..size).sum::<usize>()) as f32).to_ne_bytes());
        let sum: Vec<u8> = sum.collect();
        let call = |seq, count| {
            let call = Call::new("large", DType::F32, count).reduce(ReduceOp::Sum).root(1);
            call.numbered(seq, Duration::from_secs(60))
        };
        thread::scope(|scope| {
            for (rank, tcp) in ranks.iter().enumerate() {
                let (sum, call) = (&sum, &call);
                scope.spawn(move || {
                    let mine = values(rank, count);
                    let mut buffer = mine.clone();
                    tcp.reduce(&call(1, count), &mut buffer).unwrap();
                    assert!(buffer == if rank == 1 { sum.clone() } else { mine.clone() });
                    let (mut buffer, part) = (mine.clone(), tcp.world.part(4 * count));
                    tcp.reduce_scatter(&call(2, count), &mut buffer).unwrap();
                    assert!(buffer[part.clone()] == sum[part.clone()]);
                    assert!(
                        buffer[..part.start] == mine[..part.start] && buffer[part.end..] == mine[part.end..]
                    );
                    let mut all = vec![0; size * mine.len()];
                    tcp.all_gather(&call(3, count), &mine, &mut all).unwrap();
                    assert!(all == (0..size).flat_map(|rank| values(rank, count)).collect::<Vec<_>>());
                });
            }
        });
        for tcp in ranks {
            let streams = tcp.connections.into_inner().unwrap().streams;
            assert!(streams.iter().flatten().count() <= 2);
        }
    }
}
