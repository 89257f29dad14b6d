//! Fuzzes `collective::fuzz::text`.
#![no_main]

burn_ddp_collective_fuzz::target!(text);
