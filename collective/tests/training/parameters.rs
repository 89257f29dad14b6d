//! Parameters that do not depend on the random generator.

use burn::module::Module;
use burn::tensor::TensorData;
use burn_ddp_collective::module_state::{self, Entry};

/// The module with `value(entry, index)` as the values of each of its entries.
pub fn filled<M: Module>(module: M, value: impl Fn(&Entry, usize) -> f32) -> M {
    let entries = module_state::entries(&module).expect("read");
    let data = entries.into_iter().map(|entry| {
        let shape = entry.data.shape().clone();
        let values = (0..shape.num_elements()).map(|index| value(&entry, index));
        TensorData::new(values.collect::<Vec<_>>(), shape)
    });
    module_state::overwrite(module, data.collect())
}
