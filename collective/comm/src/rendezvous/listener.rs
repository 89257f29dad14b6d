//! The accept loop for data connections and channels: a thread per connection, and a limit of those that are not
//! authenticated.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    io,
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

/// Maximum number of connections of one listener that are being authenticated.
pub const MAX_UNPROVEN: usize = 1024;
/// Time between checks whether a listener is still open, and after a failure to accept.
const PAUSE: Duration = Duration::from_millis(100);

/// Counts a connection among those that are not authenticated, until it is dropped.
#[derive(Debug)]
pub struct Unproven(Arc<AtomicUsize>);

impl Drop for Unproven {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Starts a thread that accepts connections while `open` returns true, and calls `serve` for each in a new thread.
///
/// `serve` drops its [`Unproven`] when the peer has authenticated. Connections beyond [`MAX_UNPROVEN`], and those
/// for which the system starts no thread, are closed.
///
/// # Errors
/// If the listener cannot be configured or the thread cannot be started.
pub fn listen(
    listener: TcpListener,
    name: &'static str,
    open: impl Fn() -> bool + Send + 'static,
    serve: impl Fn(TcpStream, Unproven) + Clone + Send + 'static,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    // Hundreds of ranks connect at once.
    rustix::net::listen(&listener, 4096)?;
    let count = Arc::<AtomicUsize>::default();
    let accept = move || {
        while open() {
            let Some(stream) = next(&listener) else { continue };
            let before = count.fetch_add(1, Ordering::Relaxed);
            let unproven = Unproven(count.clone());
            if before < MAX_UNPROVEN && stream.set_nonblocking(false).is_ok() {
                let serve = serve.clone();
                // Dropping the closure closes the connection; the peer connects again.
                let _ = thread::Builder::new().name(name.into()).spawn(move || serve(stream, unproven));
            }
        }
    };
    thread::Builder::new().name(name.into()).spawn(accept).map(drop)
}

/// The next connection of a non-blocking listener, if one comes in time.
fn next(listener: &TcpListener) -> Option<TcpStream> {
    let mut ready = [PollFd::new(listener, PollFlags::IN)];
    // An error here is repeated by `accept`.
    let _ = poll(&mut ready, Timespec::try_from(PAUSE).ok().as_ref());
    match listener.accept() {
        Ok((stream, _)) => Some(stream),
        Err(error) if super::secret::retry(&error) => None,
        // For example too many open files: the listener stays readable, and this must not spin.
        Err(_) => {
            thread::sleep(PAUSE);
            None
        }
    }
}
