//! Fuzzes `burn_ddp_comm::fuzz::text`.
#![no_main]

burn_ddp_comm_fuzz::target!(text);
