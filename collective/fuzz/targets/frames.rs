//! Fuzzes `collective::fuzz::frames`.
#![no_main]

burn_ddp_collective_fuzz::target!(frames);
