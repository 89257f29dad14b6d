//! `--trace`: the spans of all ranks in one file, which Perfetto and `chrome://tracing` show.
//!
//! A span is one of the crate `tracing`, of level INFO or above: those of burn-ddp and those of the program. The format is
//! that of Chrome's trace events: <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>.

use crate::process::{atomic_file, console::eprint_line, lock, now};
use anyhow::{Context as _, Result, anyhow};
use collective::ProcessGroup;
use serde_json::{Map, Value, json};
use std::{
    fmt::Debug,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread::{self, ThreadId},
    time::{Duration, Instant},
};
use tracing::{Subscriber, field, level_filters::LevelFilter, span};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
    registry::{LookupSpan, Registry},
};

/// Maximum number of spans per rank.
const LIMIT: usize = 50_000;

/// The trace of this process in progress.
pub(super) struct Trace {
    path: PathBuf,
    recorder: Arc<Recorder>,
}

struct Recorder {
    began: Instant,
    /// Microseconds since 1970 at `began`.
    began_us: i64,
    recorded: Mutex<Recorded>,
}

#[derive(Default)]
struct Recorded {
    spans: Vec<Recording>,
    /// Threads in the order of their first spans, with their names or those of these spans.
    threads: Vec<(ThreadId, String)>,
    /// Number of spans beyond the limit.
    dropped: usize,
}

/// A span that has ended.
struct Recording {
    name: String,
    fields: Map<String, Value>,
    /// Since the beginning of the trace.
    start: Duration,
    duration: Duration,
    /// Index in [`Recorded::threads`].
    thread: usize,
}

impl Trace {
    /// Starts to record. On rank 0, `is_main`, creates the file.
    ///
    /// # Errors
    /// If the file cannot be written, or the program has a subscriber of `tracing` already.
    pub fn start(path: &Path, is_main: bool) -> Result<Self> {
        if is_main {
            atomic_file::write(path, b"[]").context("--trace")?;
        }
        let began_us = (now() * 1e6) as i64;
        let recorder = Arc::new(Recorder { began: Instant::now(), began_us, recorded: Mutex::default() });
        let subscriber = Registry::default().with(Spans(recorder.clone()).with_filter(LevelFilter::INFO));
        tracing::subscriber::set_global_default(subscriber)
            .map_err(|_| anyhow!("--trace: the program has a subscriber of `tracing` already"))?;
        Ok(Self { path: path.into(), recorder })
    }

    /// Writes the spans of all ranks of `group`. Every rank must call it.
    ///
    /// If the group fails, each rank writes its own spans.
    pub fn write(&self, group: &ProcessGroup) {
        if let Err(error) = self.write_merged(group) {
            eprint_line(&format!("warning: --trace: the traces of the ranks were not merged: {error:#}"));
            self.write_own(group.rank());
        }
    }

    /// Writes the spans of this rank to a file of its own, after a failure.
    pub fn write_own(&self, rank: usize) {
        let path = self.path.with_extension(format!("rank{rank}.json"));
        match atomic_file::write(&path, &array(&self.recorder.events(rank, self.recorder.began_us))) {
            Ok(()) => eprint_line(&format!("trace of rank {rank}: {}", path.display())),
            Err(error) => eprint_line(&format!("warning: --trace: {error:#}")),
        }
    }

    fn write_merged(&self, group: &ProcessGroup) -> Result<()> {
        let first = group.all_gather(&[self.recorder.began_us])?.concat().into_iter().min();
        let mut events = self.recorder.events(group.rank(), first.unwrap_or_default());
        let longest = group.all_gather(&[events.len() as i64])?.concat().into_iter().max();
        // JSON may have spaces between events.
        events.resize(longest.map_or(0, |longest| longest as usize), b' ');
        let Some(all) = group.gather(&events, 0)? else { return Ok(()) };
        atomic_file::write(&self.path, &array(&all.join(&b",\n"[..])))
    }
}

/// A JSON array of these elements.
fn array(elements: &[u8]) -> Vec<u8> {
    [b"[\n", elements, b"\n]\n"].concat()
}

impl Recorder {
    fn record(&self, name: &str, fields: Map<String, Value>, entered: Instant) {
        let (start, duration) = (entered.duration_since(self.began), entered.elapsed());
        let mut recorded = lock(&self.recorded);
        if recorded.spans.len() == LIMIT {
            recorded.dropped += 1;
            return;
        }
        let current = thread::current();
        let known = recorded.threads.iter().position(|(id, _)| *id == current.id());
        let thread = known.unwrap_or_else(|| {
            recorded.threads.push((current.id(), current.name().unwrap_or(name).into()));
            recorded.threads.len() - 1
        });
        recorded.spans.push(Recording { name: name.into(), fields, start, duration, thread });
    }

    /// The events of rank `rank`, with times since `first_us`, separated by commas.
    fn events(&self, rank: usize, first_us: i64) -> Vec<u8> {
        let recorded = lock(&self.recorded);
        let offset = (self.began_us - first_us) as f64;
        let name = |what: &str, thread: usize, name: &str| {
            let args = json!({ "name": name });
            json!({ "ph": "M", "name": what, "pid": rank, "tid": thread, "args": args })
        };
        let mut process = format!("rank {rank}");
        if recorded.dropped > 0 {
            process += &format!(", without its last {} spans", recorded.dropped);
        }
        let mut events = vec![name("process_name", 0, &process)];
        let threads = recorded.threads.iter().enumerate();
        events.extend(threads.map(|(at, (_, thread))| name("thread_name", at, thread)));
        let microseconds = |time: Duration| time.as_nanos() as f64 / 1e3;
        events.extend(recorded.spans.iter().map(|span| {
            json!({
                "ph": "X", "name": span.name, "ts": offset + microseconds(span.start),
                "dur": microseconds(span.duration), "pid": rank, "tid": span.thread, "args": span.fields,
            })
        }));
        events.iter().map(Value::to_string).collect::<Vec<_>>().join(",\n").into_bytes()
    }
}

/// The layer that records spans.
struct Spans(Arc<Recorder>);

/// Fields of a span.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl field::Visit for Fields {
    fn record_debug(&mut self, field: &field::Field, value: &dyn Debug) {
        self.0.insert(field.name().into(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &field::Field, value: &str) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_u64(&mut self, field: &field::Field, value: u64) {
        self.0.insert(field.name().into(), value.into());
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_enter(&self, id: &span::Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            span.extensions_mut().replace(Instant::now());
        }
    }

    fn on_exit(&self, id: &span::Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let extensions = span.extensions();
        let Some(entered) = extensions.get::<Instant>() else { return };
        let mut fields = extensions.get().map_or_else(Map::new, |Fields(fields)| fields.clone());
        // Metadata has static names only.
        let name = fields.remove("name");
        let name = name.as_ref().and_then(Value::as_str).unwrap_or(span.name());
        self.0.record(name, fields, *entered);
    }
}
