//! Fuzzes `collective::fuzz::reader`.
#![no_main]

burn_ddp_collective_fuzz::target!(reader);
