//! Fuzzes `burn_ddp_comm::fuzz::flight`.
#![no_main]

burn_ddp_comm_fuzz::target!(flight);
