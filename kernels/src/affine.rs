//! Values and affine maps of the channels of a batch.

/// Values of a batch, from which each channel's centre is subtracted.
#[derive(Clone, Copy)]
pub struct Centred<'a> {
    /// Shape `[batch, channels, positions]`.
    pub values: &'a [f32],
    /// One centre per channel; `None` means zeros.
    pub centres: Option<&'a [f32]>,
}

impl<'a> Centred<'a> {
    /// Plane `number` and its centre.
    #[inline(always)]
    pub(crate) fn plane(&self, number: usize, channels: usize, positions: usize) -> (&'a [f32], f32) {
        let centre = self.centres.map_or(0.0, |centres| centres[number % channels]);
        (&self.values[number * positions..][..positions], centre)
    }
}

/// A channel's affine map: `factors[0] × a + factors[1] × b + constant`.
#[derive(Clone, Copy, Debug)]
pub struct Affine {
    /// Factors of `a` and `b`.
    pub factors: [f32; 2],
    /// Added constant.
    pub constant: f32,
}

impl Affine {
    /// `factors[0] × x + constant`.
    #[inline(always)]
    pub(crate) fn of(&self, x: f32) -> f32 {
        x * self.factors[0] + self.constant
    }
}
