//! `SyncBatchNorm` as a Burn module. Visitors and mappers see the BatchNorm inside, without another level of names, so
//! that records, optimizers and importers of PyTorch's files work as with BatchNorm.

use super::{SyncBatchNorm, convert};
use burn::module::{
    Content, Devices, DisplaySettings, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper,
    ModuleVisitor,
};
use burn::nn::BatchNorm;
use burn::tensor::Device;
use std::fmt;

impl SyncBatchNorm {
    fn with_norm(self, change: impl FnOnce(BatchNorm) -> BatchNorm) -> Self {
        Self { norm: change(self.norm), ..self }
    }
}

impl Module for SyncBatchNorm {
    fn collect_devices(&self, devices: Devices) -> Devices {
        self.norm.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        self.with_norm(|norm| norm.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        self.with_norm(|norm| norm.to_device(device))
    }

    fn train(self) -> Self {
        self.with_norm(Module::train)
    }

    fn valid(&self) -> Self {
        Self { norm: self.norm.valid(), ..self.clone() }
    }

    fn materialize(self) -> Self {
        self.with_norm(Module::materialize)
    }

    fn visit<Visitor: ModuleVisitor>(&self, visitor: &mut Visitor) {
        self.norm.visit(visitor);
    }

    fn map<Mapper: ModuleMapper>(mut self, mapper: &mut Mapper) -> Self {
        if let Some(group) = convert::group_for(&self.norm) {
            self.group = Some(group);
        }
        self.with_norm(|norm| norm.map(mapper))
    }
}

impl ModuleDisplayDefault for SyncBatchNorm {
    fn content(&self, content: Content) -> Option<Content> {
        content.set_top_level_type("SyncBatchNorm").add("norm", &self.norm).optional()
    }

    fn num_params(&self) -> usize {
        Module::num_params(self)
    }
}

impl ModuleDisplay for SyncBatchNorm {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        self.norm.custom_settings()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let ranks = self.group.as_ref().map_or(1, |group| group.world_size());
        self.norm.custom_content(content)?.add("ranks", &ranks).optional()
    }
}

impl fmt::Display for SyncBatchNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.format(DisplaySettings::default()))
    }
}
