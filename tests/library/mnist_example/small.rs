//! A small data set in MNIST's format, and a web server that serves it with or without faults.

use burn_ddp::data::download::RemoteFile;
use flate2::{Compression, write::GzEncoder};
use mnist::data::{PIXELS, SIDE};
use sha2::{Digest, Sha256};
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
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

/// A mirror's response: status, announced length, content; `None` for no response.
pub type Answer = Option<(u16, usize, Vec<u8>)>;

/// A web server that ends with the test.
pub struct Mirror {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
    done: Arc<AtomicBool>,
}

impl Mirror {
    /// Serves the small data set unchanged.
    pub fn good() -> Self {
        Self::serving(|_, file| Some((200, file.len(), file)))
    }

    /// Serves the result of `answer` for a file's name and its gzipped content.
    pub fn serving(answer: impl Fn(&str, Vec<u8>) -> Answer + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mirror = Mirror {
            address: listener.local_addr().unwrap(),
            requests: Arc::default(),
            done: Arc::default(),
        };
        let (requests, done) = (mirror.requests.clone(), mirror.done.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                if done.load(Ordering::SeqCst) {
                    break;
                }
                requests.fetch_add(1, Ordering::SeqCst);
                // A client may have disconnected.
                let _ = stream.and_then(|stream| serve(stream, &answer));
            }
        });
        mirror
    }

    /// The address as in `MNIST_MIRROR`.
    pub fn address(&self) -> String {
        format!("http://{}/mnist/", self.address)
    }

    /// Number of requests so far.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.done.store(true, Ordering::SeqCst);
        // Wakes the server, which then ends.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(mut stream: TcpStream, answer: &impl Fn(&str, Vec<u8>) -> Answer) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let path = request.split(' ').nth(1).unwrap_or_default();
    let file = files().into_iter().find(|(name, _)| path == format!("/mnist/{name}.gz"));
    let (status, length, content) = match file {
        Some((name, bytes)) => match answer(name, gzip(&bytes)) {
            Some(answer) => answer,
            None => {
                // Blocks until the client disconnects.
                let _ = lines.next();
                return Ok(());
            }
        },
        None => (404, 0, vec![]),
    };
    write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")?;
    stream.write_all(&content)
}
