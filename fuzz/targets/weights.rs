//! Fuzzes `burn_ddp_fuzz::properties::weights`.
#![no_main]

burn_ddp_fuzz::target!(weights);
