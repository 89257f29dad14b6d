//! A small data set in MNIST's format, and a web server that serves it with or without faults.

use crate::http::{Answer, Server};
use burn_ddp::data::download::RemoteFile;
use flate2::{Compression, write::GzEncoder};
use mnist::data::{PIXELS, SIDE};
use sha2::{Digest, Sha256};
use std::{
    fs,
    io::Write,
    path::Path,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Names of MNIST's files.
pub const NAMES: [&str; 4] = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
];
/// Number of training images in the small data set.
pub const TRAIN: usize = 30;
/// Number of test images.
pub const TEST: usize = 20;

/// Encodes an IDX file.
pub fn idx(magic: u32, dimensions: &[u32], data: &[u8]) -> Vec<u8> {
    let mut bytes = magic.to_be_bytes().to_vec();
    dimensions.iter().for_each(|dimension| bytes.extend(dimension.to_be_bytes()));
    bytes.extend(data);
    bytes
}

/// `count` images of incompressible noise, so that a truncated download lacks pixels.
pub fn images(count: usize) -> Vec<u8> {
    let noise: Vec<u8> =
        (0..(count * PIXELS) as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    idx(0x0803, &[count as u32, SIDE as u32, SIDE as u32], &noise)
}

/// `count` labels.
pub fn labels(count: usize) -> Vec<u8> {
    idx(0x0801, &[count as u32], &(0..count).map(|i| (i % 10) as u8).collect::<Vec<_>>())
}

/// Compresses bytes as `gzip` does.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(vec![], Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Files of the small data set, by MNIST's names.
pub fn files() -> [(&'static str, Vec<u8>); 4] {
    let [a, b, c, d] = NAMES;
    [(a, images(TRAIN)), (b, labels(TRAIN)), (c, images(TEST)), (d, labels(TEST))]
}

/// Properties that a download of the small data set must have.
pub fn originals() -> [RemoteFile<'static>; 4] {
    static SUMS: LazyLock<[String; 4]> =
        LazyLock::new(|| files().map(|(_, bytes)| hex::encode(Sha256::digest(&bytes))));
    std::array::from_fn(|i| {
        let (name, bytes) = &files()[i];
        RemoteFile { name, bytes: bytes.len() as u64, sha256: &SUMS[i] }
    })
}

/// Writes the small data set into a folder.
pub fn write(folder: &Path) {
    for (name, bytes) in files() {
        fs::write(folder.join(format!("{name}.gz")), gzip(&bytes)).unwrap();
    }
}

/// A web server with the small data set.
pub struct Mirror {
    server: Server,
    requests: Arc<AtomicUsize>,
}

impl Mirror {
    /// Serves the small data set unchanged.
    pub fn good() -> Self {
        Self::serving(|_, file| Some((200, file.len(), file)))
    }

    /// Serves the result of `answer` for a file's name and its gzipped content.
    pub fn serving(answer: impl Fn(&str, Vec<u8>) -> Answer + Send + Sync + 'static) -> Self {
        let requests = Arc::<AtomicUsize>::default();
        let received = requests.clone();
        let server = Server::start(move |request| {
            received.fetch_add(1, Ordering::SeqCst);
            let file = files().into_iter().find(|(name, _)| request.path == format!("/mnist/{name}.gz"));
            file.map_or(Some((404, 0, vec![])), |(name, bytes)| answer(name, gzip(&bytes)))
        });
        Self { server, requests }
    }

    /// The address as in `MNIST_MIRROR`.
    pub fn address(&self) -> String {
        format!("http://{}/mnist/", self.server.address)
    }

    /// Number of requests so far.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}
