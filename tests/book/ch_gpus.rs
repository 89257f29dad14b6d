//! A claim of the chapter "GPUs, NCCL, Gloo and MPI". `tests/programs/failures.rs` has those about missing and hidden GPUs.

use crate::common::run_example;

#[test]
fn a_transport_that_cannot_be_used_is_an_error() {
    let nccl = if cfg!(feature = "cuda") {
        "--transport nccl: rank 0: its device is cpu, and NCCL is for NVIDIA GPUs"
    } else {
        "--transport nccl: rank 0: this program was built without cuda"
    };
    let mut cases = vec![("nccl", nccl)];
    if !cfg!(feature = "mpi") {
        cases.push(("mpi", "this program was built without MPI"));
    }
    for (transport, words) in cases {
        let flags = format!("--device cpu --nproc-per-node 2 --transport {transport}");
        let outcome = run_example("first_all_reduce", &flags);
        assert_eq!(outcome.code, Some(1), "{outcome:#?}");
        assert!(outcome.stderr.contains(words), "{outcome:#?}");
    }
}
