//! Kernels whose products are rounded as tensor cores round them.

use std::iter;

/// Rounds the factors of a kernel's products to TF32 if it computes a matrix product or a convolution.
///
/// Examples: `float const v3 = v1 * v2;`, `float const v4 = fma(v1, v2, v3);`.
pub fn rounded(kernel: &str, source: String) -> String {
    if !["matmul", "conv"].iter().any(|word| kernel.contains(word)) {
        return source;
    }
    let line = |line: &str| {
        let (start, value) = line.split_once(" = ").filter(|(start, _)| start.starts_with("float const "))?;
        let (call, separator) = if value.starts_with("fma(") { ("fma(", ", ") } else { ("", " * ") };
        let (one, rest) = value[call.len()..].split_once(separator)?;
        let end = rest.find([',', ';'])?;
        let (other, rest) = rest.split_at(end);
        Some(format!("{start} = {call}cpu_tf32({one}){separator}cpu_tf32({other}){rest}"))
    };
    // The roundings take more time than the products, unless g++ vectorises them.
    let lines = source.lines().map(|text| line(text).unwrap_or_else(|| text.into()) + "\n");
    iter::once("#pragma GCC optimize(\"O2\")\n".into()).chain(lines).collect()
}
