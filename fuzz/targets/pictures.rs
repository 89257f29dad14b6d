//! Fuzzes `burn_ddp_fuzz::properties::pictures`.
#![no_main]

burn_ddp_fuzz::target!(pictures);
