//! The flags with which g++ compiles kernels. They are part of a kernel's key in the cache.

/// Tests execute each kernel a few times only, so that more optimisation takes more time than it saves. Linking takes
/// half the time without the standard libraries, which the process has loaded.
const FLAGS: [&str; 12] = [
    "-std=c++17",
    "-w",
    "-O1",
    "-fPIC",
    "-shared",
    "-nostdlib",
    "-lm",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-Wl,-Bsymbolic",
];

pub fn flags() -> Vec<&'static str> {
    // Without these flags every conversion of a `__half` calls libgcc, and every `fma` libm.
    let half = std::is_x86_feature_detected!("f16c").then_some("-mf16c");
    let fma = std::is_x86_feature_detected!("fma").then_some("-mfma");
    FLAGS.into_iter().chain(half).chain(fma).chain(["-x", "c++"]).collect()
}
