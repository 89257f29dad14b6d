//! Links the program at a fixed address.
//!
//! A position-independent program writes half a million addresses at its start, and reads 12 MB from the file for it.
//! Without them, each rank needs 17 MiB less memory. `benches/results/speed-and-footprint.md` has the measurements.

fn main() {
    let gnu_linux = std::env::var("TARGET").is_ok_and(|target| target.ends_with("linux-gnu"));
    if gnu_linux {
        println!("cargo::rustc-link-arg-examples=-no-pie");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
