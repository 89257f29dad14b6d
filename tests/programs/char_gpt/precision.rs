//! The GPT in 16 bits, in every mode.

use super::{text, train};
use crate::common::assert_close;

#[test]
fn it_learns_in_16_bits_as_in_f32() {
    let (_folder, text) = text();
    let flags = "--scale-lr none --epochs 2 --lr 0.01";
    let losses = |more: &str| {
        let (run, outcome) = train(&text, &format!("{flags} {more}"));
        assert!(!outcome.stderr.contains("is skipped"), "{outcome:#?}");
        run.losses()
    };
    let exact = losses("--mode single --batch-size 12");
    assert!(exact.len() == 10 && exact[9] < exact[0] - 0.3, "{exact:?}");
    for (precision, tolerance) in [("f16", 2e-3), ("bf16", 2e-2)] {
        for way in [
            "--mode single --batch-size 12",
            "--nproc-per-node 2 --batch-size 6",
            "--mode dp --device-ids cpu:0,cpu:1 --batch-size 12",
        ] {
            let half = losses(&format!("{way} --precision {precision}"));
            assert_ne!(half, exact, "{precision} {way}");
            assert_close(&format!("{precision} {way}"), &half, &exact, tolerance);
        }
    }
    // With dropout, attention takes another path.
    let dropped = losses("--mode single --batch-size 12 --dropout 0.1 --tie-weights --precision bf16");
    assert!(dropped[9] < dropped[0] - 0.3, "{dropped:?}");
}
