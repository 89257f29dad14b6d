//! Fuzzes `collective::fuzz::flight`.
#![no_main]

burn_ddp_collective_fuzz::target!(flight);
