//! Fuzzes `burn_ddp_comm::fuzz::handshake`.
#![no_main]

burn_ddp_comm_fuzz::target!(handshake);
