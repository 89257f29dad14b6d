//! Fuzzes `burn_ddp_fuzz::properties::manifest`.
#![no_main]

burn_ddp_fuzz::target!(manifest);
