//! Fuzzes `burn_ddp_fuzz::properties::environment`.
#![no_main]

burn_ddp_fuzz::target!(environment);
