//! Fuzzes `burn_ddp_comm::fuzz::reader`.
#![no_main]

burn_ddp_comm_fuzz::target!(reader);
