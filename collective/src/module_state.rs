//! Broadcast and comparison of a module's parameters and buffers over ranks.

use crate::{Error, ProcessGroup, Result, device_error::read_data, parameters::values};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, Int, Shape, Tensor, TensorData};
use sha2::{Digest, Sha256};
use std::collections::HashMap;

/// One parameter or buffer of a module.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Field names from the root, separated by dots: `conv1.weight`.
    pub path: String,
    /// Values and shape, on the host.
    pub data: TensorData,
    /// Whether the optimizer updates it; false for buffers such as running statistics.
    pub trainable: bool,
}

/// Every parameter and buffer, in field order.
///
/// Burn applies the last update of BatchNorm's running statistics when a module is switched to inference. This
/// function does so on a clone.
///
/// # Errors
/// If the device fails.
pub fn entries<M: Module>(module: &M) -> Result<Vec<Entry>> {
    let _ = module.valid();
    let mut collect = Collect::default();
    module.visit(&mut collect);
    collect.entries.into_iter().collect()
}

/// A float parameter or buffer of a module.
#[derive(Clone, Debug)]
pub struct FloatParam {
    /// Identity.
    pub id: ParamId,
    /// Field names from the root, separated by dots: `conv1.weight`.
    pub path: String,
    /// Burn's name of the container, such as `Struct:Linear`.
    pub container: String,
    /// Shape, also of a parameter that is not initialised.
    pub shape: Shape,
    /// Whether the optimizer updates it.
    pub trainable: bool,
}

/// Every float parameter and buffer, in field order.
pub fn float_params<M: Module>(module: &M) -> Vec<FloatParam> {
    /// Field names and containers, and the parameters found.
    struct Find(Vec<(String, String)>, Vec<FloatParam>);
    impl ModuleVisitor for Find {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.push((name.into(), container.into()));
        }
        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.0.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let names: Vec<&str> = self.0.iter().map(|(name, _)| name.as_str()).collect();
            self.1.push(FloatParam {
                id: param.id,
                path: names.join("."),
                container: self.0.last().map(|(_, container)| container.clone()).unwrap_or_default(),
                shape: param.lazy_shape(),
                trainable: param.is_require_grad(),
            });
        }
    }
    let mut find = Find(Vec::new(), Vec::new());
    module.visit(&mut find);
    find.1
}

/// Initialises all parameters. Otherwise Burn does so at first use, and separately in every clone.
pub fn initialize<M: Module>(module: &M) {
    for trainable in [true, false] {
        values(module, trainable);
    }
}

/// Verifies that a module has a trainable parameter, and none that is a clone of an earlier parameter.
///
/// # Errors
/// [`Error::NotTrainable`], for example for a module that was created on a device without autodiff, and
/// [`Error::Invalid`] for a clone, because Burn's optimizers update the earlier one only, even if it is frozen.
pub fn require_trainable<M: Module>(module: &M) -> Result<()> {
    let params = float_params(module);
    let mut paths = HashMap::new();
    for FloatParam { id, path, trainable, .. } in &params {
        match paths.insert(id, path) {
            Some(first) if *trainable => {
                return Err(Error::Invalid(format!(
                    "parameter {path} is a clone of {first}, and the optimizer would update only one of them; initialise \
                     each layer separately, or use one field in both places"
                )));
            }
            _ => {}
        }
    }
    if params.iter().any(|param| param.trainable) { Ok(()) } else { Err(Error::NotTrainable) }
}

/// SHA-256 in hex over bytes and shapes of all parameters and buffers, in field order.
///
/// It does not include names, so that renaming a field does not change it.
///
/// # Errors
/// If the device fails.
pub fn digest<M: Module>(module: &M) -> Result<String> {
    Ok(digest_of(&entries(module)?))
}

fn digest_of<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> String {
    let mut hash = Sha256::new();
    for entry in entries {
        for dim in entry.data.shape().iter() {
            hash.update((*dim as u64).to_le_bytes());
        }
        hash.update(entry.data.as_bytes());
    }
    hex::encode(hash.finalize())
}

/// Copies `root`'s parameters and buffers to every rank.
///
/// # Errors
/// If the ranks' modules differ in names, shapes, types or trainability, naming the first difference; or if
/// the group fails.
pub fn broadcast<M: Module>(module: M, group: &ProcessGroup, root: usize) -> Result<M> {
    if group.world_size() == 1 {
        return Ok(module);
    }
    let entries = entries(&module)?;
    check_structure(&entries, group)?;
    receive(module, entries, group, root, |_| true)
}

/// Verifies that all ranks hold the same parameters, and copies `root`'s buffers to every rank.
///
/// Buffers such as BatchNorm's running statistics may differ, because each rank computes them from its own
/// samples. Returns the module with its [`digest`].
///
/// # Errors
/// [`Error::Diverged`] naming the ranks whose parameters differ from rank 0's; or if the group fails.
pub fn verify_and_share_buffers<M: Module>(
    module: M,
    group: &ProcessGroup,
    root: usize,
    when: &str,
) -> Result<(M, String)> {
    let entries = entries(&module)?;
    let parameters = digest_of(entries.iter().filter(|entry| entry.trainable));
    compare(&parameters, group, when)?;
    if entries.iter().all(|entry| entry.trainable) {
        return Ok((module, parameters));
    }
    let module = match group.world_size() {
        1 => module,
        _ => receive(module, entries, group, root, |entry| !entry.trainable)?,
    };
    let digest = digest(&module)?;
    Ok((module, digest))
}

/// Replaces the `entries` for which `shared` is true by `root`'s.
fn receive<M: Module>(
    module: M,
    mut entries: Vec<Entry>,
    group: &ProcessGroup,
    root: usize,
    shared: fn(&Entry) -> bool,
) -> Result<M> {
    broadcast_data(
        entries.iter_mut().filter(|entry| shared(entry)).map(|entry| &mut entry.data),
        group,
        root,
    )?;
    if group.rank() == root {
        return Ok(module);
    }
    Ok(overwrite(module, entries.into_iter().map(|e| e.data).collect()))
}

/// Replaces values by those of `root`, which have the same shapes and types.
///
/// # Errors
/// If the group fails.
pub(crate) fn broadcast_data<'a>(
    data: impl Iterator<Item = &'a mut TensorData>,
    group: &ProcessGroup,
    root: usize,
) -> Result<()> {
    let data: Vec<&mut TensorData> = data.collect();
    // One message for all, because the cost per message dominates here.
    let mut bytes = data.iter().map(|data| data.as_bytes()).collect::<Vec<_>>().concat();
    group.broadcast(&mut bytes, root)?;
    if group.rank() == root {
        return Ok(());
    }
    let mut rest = &bytes[..];
    for data in data {
        let (theirs, others) = rest.split_at(data.as_bytes().len());
        *data = TensorData::from_bytes_vec(theirs.to_vec(), data.shape().clone(), data.dtype());
        rest = others;
    }
    Ok(())
}

/// Fails on every rank if any two ranks hold different bits.
///
/// # Errors
/// [`Error::Diverged`] naming the ranks that differ from rank 0; or if the group fails.
pub fn verify_equal<M: Module>(module: &M, group: &ProcessGroup, when: &str) -> Result<String> {
    let mine = digest(module)?;
    compare(&mine, group, when)?;
    Ok(mine)
}

fn compare(mine: &String, group: &ProcessGroup, when: &str) -> Result<()> {
    let all = group.all_gather_object(mine)?;
    let different: Vec<usize> = (0..all.len()).filter(|&r| all[r] != all[0]).collect();
    if different.is_empty() {
        return Ok(());
    }
    Err(Error::Diverged { when: when.into(), ranks: different })
}

/// Replaces every parameter and buffer by `data`, in field order.
///
/// Ids and gradient flags are kept.
///
/// # Panics
/// If `data` does not have exactly one tensor of the right shape for each.
pub fn overwrite<M: Module>(module: M, data: Vec<TensorData>) -> M {
    let mut mapper = Overwrite { data: data.into_iter() };
    let module = module.map(&mut mapper);
    assert!(mapper.data.next().is_none(), "more tensors than parameters");
    module
}

fn check_structure(entries: &[Entry], group: &ProcessGroup) -> Result<()> {
    let describe = |entry: &Entry| {
        let kind = if entry.trainable { "trainable" } else { "a buffer or frozen" };
        format!("{} {} {:?}, {kind}", entry.path, entry.data.shape(), entry.data.dtype())
    };
    let mine: Vec<String> = entries.iter().map(describe).collect();
    let all: Vec<Vec<String>> = group.all_gather_object(&mine)?;
    for (rank, theirs) in all.iter().enumerate() {
        if let Some(i) = (0..theirs.len().max(all[0].len())).find(|&i| theirs.get(i) != all[0].get(i)) {
            let show = |names: &[String]| names.get(i).cloned().unwrap_or_else(|| "nothing".into());
            return Err(Error::Invalid(format!(
                "the ranks built different models: parameter {i} is `{}` on rank 0, but `{}` on rank {rank}",
                show(&all[0]),
                show(theirs)
            )));
        }
    }
    Ok(())
}

#[derive(Default)]
struct Collect {
    path: Vec<String>,
    entries: Vec<Result<Entry>>,
}

impl Collect {
    fn push(&mut self, data: Result<TensorData>, trainable: bool) {
        self.entries.push(data.map(|data| Entry { path: self.path.join("."), data, trainable }));
    }
}

impl ModuleVisitor for Collect {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }
    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.push(read_data(param.val()), param.is_require_grad());
    }
    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.push(read_data(param.val()), false);
    }
    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.push(read_data(param.val()), false);
    }
}

struct Overwrite {
    data: std::vec::IntoIter<TensorData>,
}

impl Overwrite {
    fn next(&mut self, shape: Shape) -> TensorData {
        let data = self.data.next().expect("one tensor for each parameter");
        assert_eq!(*data.shape(), shape, "a tensor of the parameter's shape");
        data
    }
}

impl ModuleMapper for Overwrite {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|old| {
            let data = self.next(old.shape());
            Tensor::from_data(data, (&old.device(), old.dtype())).set_require_grad(old.is_require_grad())
        })
    }
    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        param.map(|old| Tensor::from_data(self.next(old.shape()), (&old.device(), old.dtype())))
    }
    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        param.map(|old| Tensor::from_data(self.next(old.shape()), &old.device()))
    }
}
