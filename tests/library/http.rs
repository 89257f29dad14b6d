//! A web server for tests.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// A request: method, path, authorization and body.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub authorization: Option<String>,
    pub content: Vec<u8>,
}

/// A response: status, announced length, content; `None` for no response.
pub type Answer = Option<(u16, usize, Vec<u8>)>;

/// A web server that ends when it is dropped.
pub struct Server {
    pub address: SocketAddr,
    over: Arc<AtomicBool>,
}

impl Server {
    /// Starts the server, which serves each connection in a thread.
    pub fn start(answer: impl Fn(Request) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (over, answer) = (Arc::<AtomicBool>::default(), Arc::new(answer));
        let server = Self { address, over: over.clone() };
        thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let answer = answer.clone();
                // A client may have disconnected.
                thread::spawn(move || stream.and_then(|stream| serve(stream, &*answer)));
            }
        });
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        // Wakes the server, which then ends.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(mut stream: TcpStream, answer: &impl Fn(Request) -> Answer) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(request) = receive(&mut reader)? {
        let Some((status, length, content)) = answer(request) else {
            // Blocks until the client disconnects.
            return reader.read(&mut [0]).map(drop);
        };
        write!(stream, "HTTP/1.1 {status} Status\r\nContent-Length: {length}\r\n\r\n")?;
        stream.write_all(&content)?;
        if length != content.len() {
            break;
        }
    }
    Ok(())
}

/// Reads a request, or `None` at the end of the connection.
fn receive(reader: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut lines = reader.by_ref().lines();
    let Some(request) = lines.next().transpose()? else { return Ok(None) };
    let (mut length, mut authorization) = (0, None);
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        match name.to_lowercase().as_str() {
            "content-length" => length = value.parse().expect("a length"),
            "authorization" => authorization = Some(value.to_owned()),
            "transfer-encoding" => panic!("uploads have a length"),
            _ => {}
        }
    }
    let mut content = vec![0; length];
    reader.read_exact(&mut content)?;
    let [method, path] = [0, 1].map(|at| request.split(' ').nth(at).unwrap_or_default().to_owned());
    Ok(Some(Request { method, path, authorization, content }))
}
