//! Fuzzes `collective::fuzz::header`.
#![no_main]

burn_ddp_collective_fuzz::target!(header);
