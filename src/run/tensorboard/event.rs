//! The few messages that TensorBoard reads, in Protocol Buffers' wire format. Their fields:
//! tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto.

use super::histogram::Histogram;
use std::borrow::Cow;

/// One entry of an event file.
pub struct Event {
    /// Seconds since 1970.
    pub wall_time: f64,
    /// Optimizer steps done.
    pub step: i64,
    pub what: What,
}

/// What an entry says.
pub enum What {
    /// The first entry of every file.
    Version,
    /// A run begins, or goes on, here: what the files before have of this step and later ones counts no
    /// more.
    Start,
    Scalar {
        tag: Cow<'static, str>,
        value: f64,
    },
    Image {
        tag: &'static str,
        picture: Picture,
    },
    Histogram {
        tag: String,
        values: Histogram,
    },
}

/// A grey picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    pub width: u32,
    pub height: u32,
    pub png: Vec<u8>,
}

impl Event {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut event = Message::default();
        event.double(1, self.wall_time);
        event.varint(2, self.step as u64);
        match &self.what {
            What::Version => event.bytes(3, b"brain.Event:2"),
            What::Start => {
                let mut session = Message::default();
                session.varint(1, 1);
                event.message(7, session);
            }
            What::Scalar { tag, value } => event.message(5, summary(tag, |entry| entry.float(2, *value))),
            What::Image { tag, picture } => event.message(5, summary(tag, |entry| image(entry, picture))),
            What::Histogram { tag, values } => event.message(5, summary(tag, |entry| histo(entry, values))),
        }
        event.0
    }
}

/// A `Summary` of one value.
fn summary(tag: &str, value: impl FnOnce(&mut Message)) -> Message {
    let (mut summary, mut entry) = (Message::default(), Message::default());
    entry.bytes(1, tag.as_bytes());
    value(&mut entry);
    summary.message(1, entry);
    summary
}

fn image(entry: &mut Message, picture: &Picture) {
    let mut image = Message::default();
    image.varint(1, picture.height.into());
    image.varint(2, picture.width.into());
    // Grey.
    image.varint(3, 1);
    image.bytes(4, &picture.png);
    entry.message(4, image);
}

fn histo(entry: &mut Message, values: &Histogram) {
    let mut histo = Message::default();
    let Histogram { min, max, count, sum, sum_squares, limits, counts } = values;
    for (field, value) in (1..).zip([*min, *max, *count as f64, *sum, *sum_squares]) {
        histo.double(field, value);
    }
    histo.doubles(6, limits.iter().copied());
    histo.doubles(7, counts.iter().map(|count| *count as f64));
    entry.message(5, histo);
}

/// A message in the making.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    /// The number of the field, and how its value is written.
    fn key(&mut self, field: u64, wire: u64) {
        self.number(field << 3 | wire);
    }

    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// 0 is what a reader takes for a field that is not there.
    fn varint(&mut self, field: u64, value: u64) {
        if value != 0 {
            self.key(field, 0);
            self.number(value);
        }
    }

    fn double(&mut self, field: u64, value: f64) {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
    }

    fn float(&mut self, field: u64, value: f64) {
        self.key(field, 5);
        self.0.extend((value as f32).to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.key(field, 2);
        self.number(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn doubles(&mut self, field: u64, values: impl Iterator<Item = f64>) {
        self.bytes(field, &values.flat_map(f64::to_le_bytes).collect::<Vec<u8>>());
    }

    fn message(&mut self, field: u64, message: Message) {
        self.bytes(field, &message.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(step: i64, what: What) -> String {
        hex::encode(Event { wall_time: 1.5, step, what }.encode())
    }

    /// The right sides are what TensorBoard's own protobuf classes serialise.
    #[test]
    fn messages_are_those_of_tensorboard() {
        assert_eq!(hex(0, What::Version), "09000000000000f83f1a0d627261696e2e4576656e743a32");
        assert_eq!(hex(3, What::Start), "09000000000000f83f10033a020801");
        assert_eq!(
            hex(300, What::Scalar { tag: "train/loss".into(), value: 0.25 }),
            "09000000000000f83f10ac022a130a110a0a747261696e2f6c6f7373150000803e"
        );
        let picture = Picture { width: 300, height: 2, png: b"abc".to_vec() };
        assert_eq!(
            hex(1, What::Image { tag: "i", picture }),
            "09000000000000f83f10012a130a110a0169220c080210ac0218012203616263"
        );
        let values = Histogram {
            min: -1.0,
            max: 2.0,
            count: 3,
            sum: 1.0,
            sum_squares: 5.0,
            limits: vec![0.0, 2.0],
            counts: vec![1, 2],
        };
        assert_eq!(
            hex(1, What::Histogram { tag: "h".into(), values }),
            "09000000000000f83f10012a580a560a01682a5109000000000000f0bf1100000000000000401900000000000008402100\
             0000000000f03f2900000000000014403210000000000000000000000000000000403a10000000000000f03f0000000000\
             000040"
        );
    }
}
