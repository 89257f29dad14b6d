//! Fuzzes `burn_ddp_fuzz::properties::run`.
#![no_main]

burn_ddp_fuzz::target!(run);
