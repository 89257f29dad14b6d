//! The wrapper makes the same steps as the burn-train strategy.

use super::{
    Net,
    common::{Kind, options, world},
    device, loader, optimizer, parameters, train, training,
};
use crate::reports::Listen;
use burn::module::Module;
use burn::tensor::Tensor;
use burn::train::{InferenceStep, Learner, RegressionOutput, TrainOutput, TrainStep};
use burn_ddp_collective::{
    DistributedDataParallel, ProcessGroup, precision::Precision, strategy::DdpStrategy,
};
use std::sync::Arc;

impl Net {
    fn regress(&self, samples: Tensor<2>) -> RegressionOutput {
        let y = samples.clone().narrow(1, 3, 1);
        let output = self.forward(samples.clone().narrow(1, 0, 3));
        RegressionOutput::new(self.loss(samples), output, y)
    }
}

impl TrainStep for Net {
    type Input = Tensor<2>;
    type Output = RegressionOutput;
    fn step(&self, samples: Tensor<2>) -> TrainOutput<RegressionOutput> {
        let output = self.regress(samples);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Net {
    type Input = Tensor<2>;
    type Output = RegressionOutput;
    fn step(&self, samples: Tensor<2>) -> RegressionOutput {
        self.regress(samples)
    }
}

#[test]
fn a_custom_loop_and_burn_train_make_the_same_steps() {
    for size in [1, 2] {
        world(Kind::Thread, size, options(), |group: ProcessGroup| {
            let (ranks, count) = (group.world(), 31);
            let load = || Arc::new(loader(ranks, count, Precision::F32));
            let reports = Arc::new(Listen::default());
            let strategy = DdpStrategy::new(group.clone(), &device(), load(), load());
            let strategy = strategy.with_observer(reports.clone());
            let learner = Learner::new(Net::new(false), optimizer(), 0.1);
            let result = strategy.launch(training::<Net>(".", load(), load(), 2), learner).expect("a run");
            let mut model = DistributedDataParallel::new(Net::new(false), &group).expect("a model");
            let (wanted, trained) = train(&mut model, ranks, count, Precision::F32);
            let losses: Vec<f64> = reports.take().steps.iter().map(|step| step.loss).collect();
            assert_eq!(losses, wanted);
            assert_eq!(parameters(&result.model.train()), trained);
        });
    }
}
