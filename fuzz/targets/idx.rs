//! Fuzzes `burn_ddp_fuzz::properties::idx`.
#![no_main]

burn_ddp_fuzz::target!(idx);
