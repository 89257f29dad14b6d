//! Fuzzes `collective::fuzz::handshake`.
#![no_main]

burn_ddp_collective_fuzz::target!(handshake);
