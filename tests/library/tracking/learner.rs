//! The MLflow metric logger in a burn-train `Learner`.

use super::mlflow_server::{Behaviour, Server};
use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::module::Module;
use burn::nn::{
    Linear, LinearConfig,
    loss::{MseLoss, Reduction},
};
use burn::optim::AdamConfig;
use burn::tensor::{Device, Tensor, TensorReadError};
use burn::train::{
    InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep, TrainingStrategy,
    metric::LossMetric,
};
use burn_ddp::run::mlflow::MlflowLogger;
use burn_ddp::{
    ProcessGroup, World,
    loader::ShardedLoader,
    strategy::{DdpStrategy, NoopRenderer},
};
use std::sync::Arc;

#[derive(Module, Debug)]
pub struct Line {
    linear: Linear,
}

#[derive(Clone, Debug)]
pub struct Points(Tensor<2>);

impl Line {
    pub fn new(device: &Device) -> Self {
        Line { linear: LinearConfig::new(1, 1).init(device) }
    }

    /// The value of the line at `x`.
    pub fn predict(&self, x: f32) -> Result<f32, TensorReadError> {
        let device = self.linear.weight.device();
        self.linear.forward(Tensor::<2>::from_data([[x]], &device)).try_into_scalar()
    }

    fn regress(&self, Points(x): Points) -> RegressionOutput {
        let output = self.linear.forward(x.clone());
        RegressionOutput::new(MseLoss::new().forward(output.clone(), x.clone(), Reduction::Mean), output, x)
    }
}

impl TrainStep for Line {
    type Input = Points;
    type Output = RegressionOutput;
    fn step(&self, points: Points) -> TrainOutput<RegressionOutput> {
        let output = self.regress(points);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Line {
    type Input = Points;
    type Output = RegressionOutput;
    fn step(&self, points: Points) -> RegressionOutput {
        self.regress(points)
    }
}

pub struct Stack;

impl Batcher<f32, Points> for Stack {
    fn batch(&self, points: Vec<f32>, device: &Device) -> Points {
        Points(Tensor::<1>::from_data(&points[..], device).unsqueeze_dim(1))
    }
}

#[test]
fn a_learner_logs_its_metrics() {
    let server = Server::start(Behaviour::default());
    let (device, world) = (Device::flex().autodiff(), World { rank: 0, size: 1 });
    let load = |count: u8| {
        let points = InMemDataset::new((0..count).map(|i| f32::from(i) / 100.0).collect());
        Arc::new(ShardedLoader::builder(points, Stack).batch_size(10).build(world))
    };
    let (train, valid) = (load(50), load(20));
    let ddp = DdpStrategy::new(ProcessGroup::solo(), &device, train.clone(), valid.clone());
    let params = serde_json::json!({"lr": 0.01, "optimizer": {"name": "adam"}});
    let logger = MlflowLogger::create(&server.uri, Some("lines"), "first", &params).expect("a logger");
    let model = Line::new(&device);
    let result = SupervisedTraining::<Line>::new(".", train, valid)
        .metrics((LossMetric::new(),))
        .with_application_logger(None)
        .renderer(Box::new(NoopRenderer))
        .num_epochs(3)
        .with_training_strategy(TrainingStrategy::Custom(Arc::new(ddp)))
        .with_metric_logger(logger)
        .launch(Learner::new(model, AdamConfig::new().init(), 0.01));
    assert!(result.error.is_none(), "{:?}", result.error);

    let steps = |name: &str| {
        let points = server.points().into_iter().filter(|point| point.0 == name);
        points.map(|point| point.1).collect::<Vec<_>>()
    };
    assert_eq!(steps("train/Loss"), (1..=15).collect::<Vec<_>>());
    assert_eq!((steps("train_epoch/Loss"), steps("valid/Loss")), (vec![5, 10, 15], vec![5, 10, 15]));
    assert!(server.points().iter().all(|point| point.2.is_finite() && point.2 > 0.0));
    let expected = [("lr", "0.01"), ("optimizer.name", "adam")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    assert_eq!(server.params(), expected);
    assert_eq!(server.statuses(), ["FINISHED"]);
}
