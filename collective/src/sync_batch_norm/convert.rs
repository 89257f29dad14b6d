//! Sets the process group of every `SyncBatchNorm` of a model.
//!
//! Burn's modules are plain structs, and mappers visit only their parameters: a `burn::nn::BatchNorm` in a model's
//! field cannot become another type, and its `forward` has no hook. Models are therefore written with the type
//! `SyncBatchNorm`, and this module reports the BatchNorm layers that are not.

use crate::{Error, ProcessGroup, Result};
use burn::module::{Flag, Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::nn::BatchNorm;
use burn::tensor::Tensor;
use std::{cell::RefCell, collections::HashSet};

thread_local! {
    /// The conversion in progress on this thread, because a mapper cannot pass anything to a submodule. Only
    /// [`Conversion::run`] sets it.
    static CONVERSION: RefCell<Option<Conversion>> = const { RefCell::new(None) };
}

struct Conversion {
    group: ProcessGroup,
    /// Gamma of each module found.
    found: HashSet<ParamId>,
}

/// Sets the process group of every [`SyncBatchNorm`](super::SyncBatchNorm) in `module`.
///
/// A module without BatchNorm is returned unchanged. Each rank calls it on its own replica; nothing is sent.
///
/// # Errors
/// [`Error::Invalid`] naming every trainable `burn::nn::BatchNorm`, because that type cannot be synchronised. Frozen
/// layers are ignored: their statistics do not change.
pub fn convert_sync_batch_norm<M: Module>(module: M, group: &ProcessGroup) -> Result<M> {
    let (module, missed) = convert(module, group);
    if missed.is_empty() {
        return Ok(module);
    }
    Err(Error::Invalid(format!(
        "`{}`: burn::nn::BatchNorm cannot be synchronised over ranks; give the model's field the type burn_ddp::nn::BatchNorm, which loads the same records",
        missed.join("`, `")
    )))
}

/// Sets the group of every `SyncBatchNorm`. Also returns the names of trainable BatchNorm layers of the other type.
pub(crate) fn convert<M: Module>(module: M, group: &ProcessGroup) -> (M, Vec<String>) {
    let mut survey = Survey::default();
    module.visit(&mut survey);
    let (module, found) = Conversion::run(module, group);
    let missed = survey.trained.into_iter().filter(|(gamma, _)| !found.contains(gamma));
    (module, missed.map(|(_, path)| path).collect())
}

/// The group for `norm`, if its model is being converted.
pub(super) fn group_for(norm: &BatchNorm) -> Option<ProcessGroup> {
    CONVERSION.with_borrow_mut(|conversion| {
        let conversion = conversion.as_mut()?;
        conversion.found.insert(norm.gamma.id);
        Some(conversion.group.clone())
    })
}

impl Conversion {
    /// Returns the converted module and the gammas of the converted layers.
    fn run<M: Module>(module: M, group: &ProcessGroup) -> (M, HashSet<ParamId>) {
        /// Ends the conversion, also if a user's module panics.
        struct End;
        impl Drop for End {
            fn drop(&mut self) {
                let _ = CONVERSION.try_with(RefCell::take);
            }
        }
        let _end = End;
        CONVERSION.set(Some(Conversion { group: group.clone(), found: HashSet::new() }));
        let module = module.map(&mut Keep);
        (module, CONVERSION.take().map(|conversion| conversion.found).unwrap_or_default())
    }
}

/// A mapper that changes no parameter.
struct Keep;
impl ModuleMapper for Keep {}

/// Collects gamma and path of each trainable BatchNorm of either type.
#[derive(Default)]
struct Survey {
    /// Field names, and whether it is a BatchNorm's.
    path: Vec<(String, bool)>,
    trained: Vec<(ParamId, String)>,
}

impl Survey {
    /// Whether the visitor is at this field of a BatchNorm.
    fn at(&self, field: &str) -> bool {
        self.path.last().is_some_and(|(name, in_batch_norm)| *in_batch_norm && name == field)
    }
}

impl ModuleVisitor for Survey {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.push((name.into(), container == "Struct:BatchNorm"));
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.at("gamma") {
            let names: Vec<&str> =
                self.path[..self.path.len() - 1].iter().map(|(name, _)| name.as_str()).collect();
            self.trained.push((param.id, names.join(".")));
        }
    }

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        // It comes after gamma.
        if self.at("training") && !flag.is_enabled() {
            self.trained.pop();
        }
    }
}
