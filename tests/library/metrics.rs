//! Metrics and callbacks over all ranks: exact if they define how they are reduced, otherwise rejected.

use crate::common::trained;
use burn::optim::SgdConfig;
use burn::tensor::{Device, TensorReadError};
use burn::train::{
    Learner, SupervisedTraining,
    logger::InMemoryMetricLogger,
    metric::{Adaptor, Metric, MetricMetadata, MetricName, SerializedEntry},
};
use burn_ddp::{
    Error, Options, ProcessGroup, World,
    loader::ShardedLoader,
    lr::WarmupLr,
    metric::{Classification, GlobalAccuracy},
    strategy::{Callback, DdpStrategy, Distributed, EpochReport, LoggedValue, NoopRenderer, Observer},
};
use mnist::{
    batch::{ImageBatcher, ImageDataset},
    data::Dataset,
    model::{Net, NetConfig},
};
use std::{
    fs,
    sync::{Arc, Mutex},
    thread,
};

#[test]
fn the_confusion_matrix_counts_every_test_image_once_at_any_world_size() {
    let flags = "--dataset subset --train-limit 64 --eval-limit 101 --batch-size 16 --max-steps 1";
    let mut labels = Vec::new();
    for world in ["--mode single", "--nproc-per-node 3", "--mode dp --device-ids cpu:0,cpu:1"] {
        let run = trained(&format!("{flags} {world}"));
        let table = fs::read_to_string(run.path.join("confusion_matrix.csv")).expect("a table");
        let rows: Vec<Vec<u64>> = (table.lines().skip(1))
            .map(|row| row.split(',').skip(1).map(|count| count.parse().expect("a count")).collect())
            .collect();
        assert_eq!(rows.len(), 10, "{table}");
        let right: u64 = (0..10).map(|digit| rows[digit][digit]).sum();
        let accuracy = run.summary()["test_accuracy"].as_f64().expect("an accuracy");
        assert_eq!(right as f64, (accuracy * 101.0).round(), "{world}: {table}");
        labels.push(rows.iter().map(|row| row.iter().sum::<u64>()).collect::<Vec<_>>());
    }
    assert_eq!(labels[0].iter().sum::<u64>(), 101);
    assert!(labels.iter().all(|sums| *sums == labels[0]), "{labels:?}");
}

/// A user's burn-train metric: top-2 accuracy.
#[derive(Clone, Default)]
struct TopTwo {
    right: u64,
    samples: u64,
}

/// For each sample, the number of classes with a larger logit than the label.
struct Places(Vec<usize>);

impl Adaptor<Places> for Classification {
    fn adapt(&self) -> Places {
        let (logits, labels) = self.answers().expect("a rank's own output");
        let logits = logits.into_data().try_into_vec::<f32>().expect("f32");
        let labels = labels.into_data().convert::<i64>().try_into_vec::<i64>().expect("integers");
        let place = |(row, label): (&[f32], &i64)| row.iter().filter(|x| **x > row[*label as usize]).count();
        Places(logits.chunks(10).zip(&labels).map(place).collect())
    }
}

impl Metric for TopTwo {
    type Input = Places;

    fn name(&self) -> MetricName {
        Arc::new("top-2".into())
    }

    fn update(&mut self, places: &Places, _: &MetricMetadata) -> Result<SerializedEntry, TensorReadError> {
        self.right += places.0.iter().filter(|place| **place < 2).count() as u64;
        self.samples += places.0.len() as u64;
        self.compute()
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        let value = format!("{} of {}", self.right, self.samples);
        Ok(SerializedEntry { formatted: value.clone(), serialized: value })
    }

    fn clear(&mut self) {
        *self = TopTwo::default();
    }
}

impl Distributed for TopTwo {
    type State = (u64, u64);

    fn state(&mut self) -> (u64, u64) {
        (self.right, self.samples)
    }

    fn join(&mut self, states: Vec<(u64, u64)>) {
        self.right = states.iter().map(|state| state.0).sum();
        self.samples = states.iter().map(|state| state.1).sum();
    }
}

/// A callback that does not support several ranks.
struct SingleDevice;
impl Callback<Net> for SingleDevice {}

/// A callback whose end of epoch fails.
struct Failing;
impl Callback<Net> for Failing {
    fn evaluation_done(&mut self, _: &EpochReport) -> Result<Vec<LoggedValue>, String> {
        Err("the plot could not be drawn".into())
    }
}

/// A callback whose batch fails.
struct FailingBatch;
impl Callback<Net> for FailingBatch {
    fn evaluated(&mut self, _: &Classification, _samples: usize) -> Result<(), String> {
        Err("the answers could not be read".into())
    }
}

/// Metrics reported to the observer.
#[derive(Default)]
struct MetricLog(Mutex<Vec<String>>);

impl Observer for MetricLog {
    fn epoch_done(&self, report: &EpochReport) {
        let line = |logged: &LoggedValue| format!("{} {} {}", report.epoch, logged.name, logged.text);
        self.0.lock().expect("no panic").extend(report.logged.iter().map(line));
    }
}

type Ddp = DdpStrategy<Net>;

/// Trains two epochs on few images on one of `group`'s ranks; returns the reported metrics and the error.
fn fit(group: ProcessGroup, set: impl Fn(Ddp) -> Ddp) -> (Vec<String>, Option<Error>) {
    let device = Device::flex().autodiff();
    let world = World { rank: group.rank(), size: group.world_size() };
    let data = Dataset::subset([Some(24), Some(21)]).expect("the subset");
    let loader = |images| {
        let loader = ShardedLoader::builder(ImageDataset(images), ImageBatcher::default());
        Arc::new(loader.batch_size(4).build(world))
    };
    let (train, test) = (loader(data.train), loader(data.test));
    let heard = Arc::new(MetricLog::default());
    let ddp = Ddp::new(group, &device, train.clone(), test.clone()).with_observer(heard.clone());
    let net = NetConfig::default().init(&device);
    let rate = WarmupLr::new(0.01, 0.01, 0);
    let training = SupervisedTraining::<Net>::new(".", train, test)
        .metrics((GlobalAccuracy::default(),))
        .with_metric_logger(InMemoryMetricLogger::default())
        .with_application_logger(None)
        .num_epochs(2)
        .renderer(Box::new(NoopRenderer));
    let failure = set(ddp).launch(training, Learner::new(net, SgdConfig::new().init(), rate)).err();
    let heard = heard.0.lock().expect("no panic").clone();
    (heard, failure)
}

/// Runs [`fit`] on two ranks, threads of this process.
fn fit_two(set: impl Fn(Ddp) -> Ddp + Sync) -> Vec<(Vec<String>, Option<Error>)> {
    let groups = ProcessGroup::threads(2, Options::default()).expect("a world");
    thread::scope(|scope| {
        let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| fit(group, &set))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

#[test]
fn a_users_metric_is_reduced_over_ranks_and_logged_once_per_epoch() {
    let ranks = fit_two(|ddp| ddp.with_metric(TopTwo::default()));
    let (heard, failure) = &ranks[0];
    assert_eq!(*failure, None);
    assert_eq!(ranks[1], ranks[0], "the same on every rank");
    assert_eq!(heard.len(), 2, "{heard:?}");
    for (epoch, line) in heard.iter().enumerate() {
        assert!(line.starts_with(&format!("{} top-2 ", epoch + 1)) && line.ends_with(" of 21"), "{line}");
    }
}

#[test]
fn a_callback_without_reduction_requires_one_device() {
    let (_, alone) = fit(ProcessGroup::solo(), |ddp| ddp.with_callback(SingleDevice));
    assert_eq!(alone, None);
    for (_, failure) in fit_two(|ddp| ddp.with_callback(SingleDevice)) {
        let error = failure.expect("a refusal").to_string();
        for part in ["SingleDevice", "2 ranks", "Distributed", "one device"] {
            assert!(error.contains(part), "{error} should say {part}");
        }
    }
}

#[test]
fn a_callback_that_fails_ends_the_run_with_its_reason() {
    let (_, failure) = fit(ProcessGroup::solo(), |ddp| ddp.with_callback(Failing));
    assert!(failure.expect("a failure").to_string().contains("the plot could not be drawn"));
    let (_, failure) = fit(ProcessGroup::solo(), |ddp| ddp.with_callback(FailingBatch));
    assert!(failure.expect("a failure").to_string().contains("the answers could not be read"));
}
