//! Peak throughput of GPUs in matrix products.

use super::{Accelerator, LocalDevice};
use collective::precision::Precision;

/// Dense TFLOP/s in 16 bits with sums in f32, and in f32 as Burn computes it: TF32 where tensor cores have it. The driver's
/// name of the GPU contains all words; the first match counts. Sources: NVIDIA's data sheets and architecture white papers.
const PEAKS: [(&str, [f64; 2]); 22] = [
    ("B200", [2250.0, 1125.0]),
    ("GH200", [989.0, 494.5]),
    ("H200 NVL", [835.0, 417.5]),
    ("H200", [989.0, 494.5]),
    ("H100 NVL", [835.0, 417.5]),
    ("H100 PCIe", [756.0, 378.0]),
    ("H100", [989.0, 494.5]),
    ("A100", [312.0, 156.0]),
    ("A40", [149.7, 74.8]),
    ("A30", [165.0, 82.0]),
    ("A10", [125.0, 62.5]),
    ("L40S", [362.0, 183.0]),
    ("L40", [181.0, 90.5]),
    ("L4", [121.0, 60.5]),
    ("V100 PCIE", [112.0, 14.0]),
    ("V100", [125.0, 15.7]),
    ("T4", [65.0, 8.1]),
    ("RTX A6000", [154.8, 77.4]),
    ("RTX 4090", [165.2, 82.6]),
    ("RTX 4080", [97.5, 48.7]),
    ("RTX 3090 Ti", [80.0, 40.0]),
    ("RTX 3090", [71.0, 35.6]),
];

impl LocalDevice {
    /// Peak throughput of matrix products in TFLOP/s; `None` of a CPU, an unknown GPU or another backend than CUDA, for
    /// which the name would have to be read by starting the device.
    pub fn peak_tflops(self, precision: Precision) -> Option<f64> {
        let LocalDevice::Gpu(kind @ Accelerator::Cuda, index) = self else { return None };
        peak(&kind.devices().ok()?.get(index)?.name(), precision)
    }
}

/// Peak throughput of the GPU that the driver calls `name`.
fn peak(name: &str, precision: Precision) -> Option<f64> {
    let words: Vec<&str> = name.split([' ', '-']).collect();
    // Parts of a GPU, and notebooks with other clocks.
    if words.iter().any(|word| ["MIG", "Laptop", "Max"].contains(word)) {
        return None;
    }
    let known = PEAKS.iter().find(|(known, _)| known.split(' ').all(|word| words.contains(&word)));
    known.map(|(_, [half, single])| if precision == Precision::F32 { *single } else { *half })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_found_by_the_words_of_their_names() {
        for (name, half) in [
            ("NVIDIA H100 80GB HBM3", Some(989.0)),
            ("NVIDIA H100 PCIe", Some(756.0)),
            ("NVIDIA A100-SXM4-80GB", Some(312.0)),
            ("NVIDIA A10", Some(125.0)),
            ("Tesla V100-PCIE-16GB", Some(112.0)),
            ("Tesla V100-SXM2-32GB", Some(125.0)),
            ("NVIDIA GeForce RTX 3090 Ti", Some(80.0)),
            ("NVIDIA GeForce RTX 4090", Some(165.2)),
            ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
            ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
            ("NVIDIA A1000", None),
        ] {
            assert_eq!(peak(name, Precision::Bf16), half, "{name}");
        }
        assert_eq!(peak("NVIDIA H200", Precision::F32), Some(494.5));
    }

    #[test]
    fn a_cpu_has_no_known_peak() {
        assert_eq!(LocalDevice::Cpu.peak_tflops(Precision::F32), None);
    }
}
