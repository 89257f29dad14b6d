//! Ranks that enter different methods with one and the same call.

use super::*;
use crate::{CallSpec, Error, Secret};
use std::{net::Ipv4Addr, thread, time::Duration};

/// Two ranks, each of which dials or is dialled when it first calls.
fn pair() -> [Tcp; 2] {
    let secret = Secret::new("a secret for tests").unwrap();
    let start =
        |rank| Arc::new(ConnectionPool::start(Ipv4Addr::LOCALHOST.into(), rank, secret.clone()).unwrap());
    let pools = [0, 1].map(start);
    let members: Vec<_> = pools.iter().map(|one| one.address()).enumerate().collect();
    [0, 1].map(|rank| Tcp::new(pools[rank].clone(), 0, rank, members.clone()))
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
    for (name, other) in others {
        for count in [4, 100_000] {
            let call = CallSpec::new("exchange", DType::F32, count).reduce(ReduceOp::Sum).root(0);
            let call = call.numbered(1, Duration::from_secs(60));
            let ranks = pair();
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
