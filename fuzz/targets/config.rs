//! Fuzzes `burn_ddp_fuzz::properties::config`.
#![no_main]

burn_ddp_fuzz::target!(config);
