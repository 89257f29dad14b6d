//! The chapter "Testing your program".

// ANCHOR: program
use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::nn::LinearConfig;
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use burn_ddp::{
    Context, DistributedDataParallel, Error, launch_threads,
    loader::{DistributedLoader, ShardedLoader},
};

/// Batches numbers into a tensor `[batch, 1]`.
struct Stack;
impl Batcher<f32, Tensor<2>> for Stack {
    fn batch(&self, samples: Vec<f32>, device: &Device) -> Tensor<2> {
        Tensor::<1>::from_data(samples.as_slice(), device).unsqueeze_dim(1)
    }
}

/// Fits a line through the origin and returns the loss of each epoch.
fn train(context: &Context) -> anyhow::Result<Vec<f64>> {
    let samples = InMemDataset::new((0..101).map(|i| i as f32 / 50.0 - 1.0).collect());
    let loader = ShardedLoader::builder(samples, Stack).batch_size(24 / context.world_size()).shuffle(7);
    let loader = loader.build(context.world());
    let net = context.init_module(7, |device| LinearConfig::new(1, 1).init(device));
    let mut model = DistributedDataParallel::new(net, context.group())?;
    let mut optimizer = SgdConfig::new().init();
    let mut losses = Vec::new();
    for epoch in 1..=5 {
        let mut sum = 0.0;
        for batch in loader.epoch(epoch, 0, context.device()) {
            let (loss, gradients) =
                model.backward(batch?, |net, x| (net.forward(x.clone()) - x * 2.0).powi_scalar(2).mean())?;
            model.step(&mut optimizer, 0.2, gradients)?;
            sum += loss.sum()?;
        }
        losses.push(sum / 101.0);
    }
    Ok(losses)
}
// ANCHOR_END: program

// ANCHOR: curve
#[test]
fn every_world_size_follows_one_curve() -> anyhow::Result<()> {
    let one = launch_threads(1, train)?.remove(0);
    assert!(one[4] < 0.1 * one[0], "{one:?}");
    for world_size in [2, 3] {
        for losses in launch_threads(world_size, train)? {
            for (loss, expected) in losses.iter().zip(&one) {
                assert!((loss - expected).abs() < 1e-5, "{world_size} ranks: {losses:?}, not {one:?}");
            }
        }
    }
    Ok(())
}
// ANCHOR_END: curve

// ANCHOR: failure
#[test]
fn an_error_of_a_rank_ends_all_ranks() {
    let result = launch_threads(2, |context| {
        if context.rank() == 1 {
            return Err(Error::Invalid("no samples".into()).into());
        }
        Ok(context.group().barrier()?)
    });
    let error = result.expect_err("rank 1 fails");
    assert_eq!(format!("{error:#}"), "rank 1: no samples");
    assert!(matches!(error.downcast_ref(), Some(Error::Invalid(_))));
}
// ANCHOR_END: failure

mod trainer {
    use crate::common::{Run, assert_close};
    use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
    use burn::module::Module;
    use burn::nn::{Linear, LinearConfig, loss::MseLoss, loss::Reduction};
    use burn::optim::AdamConfig;
    use burn::tensor::{Device, Tensor};
    use burn::train::{InferenceStep, RegressionOutput, TrainOutput, TrainStep};
    use burn_ddp::{Context, Trainer, TrainerArgs, launch_threads_with};
    use clap::Parser;
    use std::path::PathBuf;

    #[derive(Module, Debug)]
    struct Line {
        linear: Linear,
    }

    #[derive(Clone, Debug)]
    struct Points(Tensor<2>);

    struct Stack;
    impl Batcher<f32, Points> for Stack {
        fn batch(&self, samples: Vec<f32>, device: &Device) -> Points {
            Points(Tensor::<1>::from_data(samples.as_slice(), device).unsqueeze_dim(1))
        }
    }

    impl InferenceStep for Line {
        type Input = Points;
        type Output = RegressionOutput;
        fn step(&self, Points(x): Points) -> RegressionOutput {
            let (output, target) = (self.linear.forward(x.clone()), x * 2.0);
            let loss = MseLoss::new().forward(output.clone(), target.clone(), Reduction::Mean);
            RegressionOutput::new(loss, output, target)
        }
    }

    impl TrainStep for Line {
        type Input = Points;
        type Output = RegressionOutput;
        fn step(&self, points: Points) -> TrainOutput<RegressionOutput> {
            let output = InferenceStep::step(self, points);
            TrainOutput::new(self, output.loss.backward(), output)
        }
    }

    fn losses(run: PathBuf) -> Vec<f64> {
        Run::at(run).column("epochs.csv", "train_loss")
    }

    // ANCHOR: trainer
    #[derive(Parser)]
    struct Args {
        #[command(flatten)]
        trainer: TrainerArgs,
    }

    fn fit(context: &Context, args: &TrainerArgs) -> anyhow::Result<()> {
        let points = |count| InMemDataset::new((0..count).map(|i| i as f32 / 50.0 - 1.0).collect());
        let trainer = Trainer::new(context, args);
        let loaders = trainer.loaders(points(101), points(20), Stack);
        let line = trainer.init(|device| Line { linear: LinearConfig::new(1, 1).init(device) });
        trainer.fit(line, AdamConfig::new().init(), loaders)?;
        Ok(())
    }

    #[test]
    fn the_trainer_follows_one_curve() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let run = |world_size: usize, batch_size: usize| {
            let run = folder.path().join(world_size.to_string());
            let flags = "test --epochs 3 --lr 0.05 --scale-lr none --progress plain";
            let flags = format!("{flags} --batch-size {batch_size} --run-dir {}", run.display());
            let args = Args::parse_from(flags.split(' ')).trainer;
            launch_threads_with(&args.context, world_size, |context| fit(context, &args))?;
            anyhow::Ok(losses(run))
        };
        let (one, two) = (run(1, 24)?, run(2, 12)?);
        assert!(one.len() == 3 && one[2] < one[0], "{one:?}");
        assert_close("2 ranks", &two, &one, 1e-5);
        Ok(())
    }
    // ANCHOR_END: trainer
}
