//! Padding of convolutions and pooling.

use burn::nn::{PaddingConfig1d, PaddingConfig2d};

/// Padding before and after the rows and the columns of images of `size`, as in Burn.
pub fn padding(
    setting: &PaddingConfig2d,
    size: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
) -> [[usize; 2]; 2] {
    [0, 1].map(|axis| match *setting {
        PaddingConfig2d::Valid => [0, 0],
        PaddingConfig2d::Explicit(top, left, bottom, right) => [[top, bottom], [left, right]][axis],
        // Whatever the dilation.
        PaddingConfig2d::Same => {
            let outputs = size[axis].div_ceil(stride[axis].max(1));
            let reach = outputs.saturating_sub(1) * stride[axis] + kernel[axis];
            let all = reach.saturating_sub(size[axis]);
            [all / 2, all - all / 2]
        }
    })
}

/// Padding of the columns of images with one row.
pub fn of_one_row(setting: &PaddingConfig1d) -> PaddingConfig2d {
    match *setting {
        PaddingConfig1d::Valid => PaddingConfig2d::Valid,
        PaddingConfig1d::Same => PaddingConfig2d::Same,
        PaddingConfig1d::Explicit(left, right) => PaddingConfig2d::Explicit(0, left, 0, right),
    }
}
