//! Fuzzes `burn_ddp_comm::fuzz::frames`.
#![no_main]

burn_ddp_comm_fuzz::target!(frames);
