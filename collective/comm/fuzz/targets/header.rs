//! Fuzzes `burn_ddp_comm::fuzz::header`.
#![no_main]

burn_ddp_comm_fuzz::target!(header);
