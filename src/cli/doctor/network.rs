//! Latency, bandwidth and clock skew between this machine and another.

use super::Finding;
use crate::process::{console::print_line, now};
use anyhow::{Context, Result};
use collective::{
    SECRET, Secret,
    channel::{Channel, Received},
};
use serde::{Deserialize, Serialize};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream, ToSocketAddrs},
    thread,
    time::{Duration, Instant},
};

const PINGS: usize = 200;
/// Bytes sent in each direction to measure the bandwidth.
const BYTES: usize = 64 << 20;
const CHUNK: usize = 256 << 10;
const WAIT: Duration = Duration::from_secs(10);
/// Clock skew in seconds above which timestamps of two machines are not comparable.
const SKEW: f64 = 1.0;
/// Bandwidth in bytes per second below which the all-reduce of a mid-sized network takes longer than its step.
const SLOW: f64 = 50e6;

/// Message between two doctors.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Word {
    Ping,
    /// Seconds since 1970 by the responder's clock.
    Pong(f64),
    /// The responder answers `Pong`, receives [`BYTES`] raw bytes, and answers `Pong`.
    Receive,
    /// The responder sends [`BYTES`] raw bytes.
    Send,
}

struct Measured {
    /// Median round-trip time in seconds.
    latency: f64,
    /// Bytes per second sent and received.
    bandwidth: [f64; 2],
    /// Seconds by which the peer's clock is ahead.
    skew: f64,
}

/// Measures this machine's loopback interface.
pub(super) fn loopback() -> Finding {
    let name = "loopback";
    let measured = (|| -> Result<Measured> {
        let (secret, listener) = (Secret::random(), TcpListener::bind("127.0.0.1:0")?);
        let address = listener.local_addr()?.to_string();
        let answering = secret.clone();
        let server = thread::Builder::new().spawn(move || {
            if let Ok((stream, _)) = listener.accept() {
                let _ = serve(stream, &answering);
            }
        })?;
        let measured = measure(&address, &secret, WAIT)?;
        let _ = server.join();
        Ok(measured)
    })();
    match measured {
        Ok(measured) => Finding::ok(name, measured.speed()),
        Err(error) => Finding::fail(
            name,
            format!("{error:#}"),
            "ranks of this machine connect through 127.0.0.1: bring the interface up (ip link set lo up)",
        ),
    }
}

/// Measures the connection to a machine that runs `burn-ddp doctor --listen`.
pub(super) fn peer(address: &str, timeout: f64, report: &mut impl FnMut(Finding)) {
    let patience = Duration::from_secs_f64(timeout);
    let measured = secret_for(address).and_then(|secret| measure(address, &secret, patience));
    let measured = match measured {
        Ok(measured) => measured,
        Err(error) => {
            let advice = "run `burn-ddp doctor --listen 0.0.0.0:PORT` on that machine with the same BURN_DDP_SECRET; check host name, routes and firewall";
            return report(Finding::fail("peer", format!("{address}: {error:#}"), advice));
        }
    };
    let found = format!("{address}: {}", measured.speed());
    let advice =
        "slow for gradient synchronisation: check that this address belongs to the fastest interface";
    let slow = measured.bandwidth.iter().any(|rate| *rate < SLOW);
    report(Finding::ok("peer", found).note_if(slow, advice));
    // The error of the estimate is at most half the round-trip time.
    let found = format!("{address}: {:+.3} s, ± {:.3} s", measured.skew, measured.latency / 2.0);
    let advice = "timestamps of the two machines are not comparable: run NTP (chronyd) on both";
    report(Finding::ok("clock skew", found).note_if(measured.skew.abs() > SKEW, advice));
}

/// Serves `doctor --peer` of other machines, one after the other, until the process is stopped.
///
/// # Errors
/// If the address cannot be bound.
pub(super) fn listen(address: &str) -> Result<()> {
    let secret = secret_for(address)?;
    let listener = TcpListener::bind(address).with_context(|| format!("cannot listen at {address}"))?;
    let here = listener.local_addr().context("cannot read the bound port")?;
    print_line(&format!(
        "listening at {here}; on another machine: burn-ddp doctor --peer HOST:{}",
        here.port()
    ))?;
    loop {
        let (stream, peer) = listener.accept().context("cannot accept connections")?;
        print_line(&match serve(stream, &secret) {
            Ok(()) => format!("ok    {peer} connected"),
            Err(error) => format!("note  {peer} failed: {error:#}"),
        })?;
    }
}

/// The secret of `BURN_DDP_SECRET`, which loopback addresses do not need.
fn secret_for(address: &str) -> Result<Secret> {
    if let Ok(text) = std::env::var(SECRET) {
        return Ok(Secret::new(text)?);
    }
    let addresses = address.to_socket_addrs().with_context(|| format!("{address} is not HOST:PORT"))?;
    if addresses.into_iter().all(|address| address.ip().is_loopback()) {
        return Ok(Secret::new("burn-ddp doctor")?);
    }
    anyhow::bail!("{SECRET} is not set; set it to the same text on both machines")
}

impl Measured {
    fn speed(&self) -> String {
        let [sent, received] = self.bandwidth.map(|rate| rate / 1e6);
        format!("{:.0} µs round trip, {sent:.0} MB/s sent, {received:.0} MB/s received", self.latency * 1e6)
    }
}

fn measure(address: &str, secret: &Secret, patience: Duration) -> Result<Measured> {
    let mut channel = Channel::dial(address, secret, Instant::now() + patience)?;
    let mut rounds = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let (begun, sent) = (Instant::now(), now());
        channel.send(&Word::Ping)?;
        let there = pong(&mut channel)?;
        let took = begun.elapsed().as_secs_f64();
        rounds.push((took, there - (sent + took / 2.0)));
    }
    rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
    let latency = rounds[PINGS / 2].0;
    // The fastest round trip gives the most precise clock difference.
    let skew = rounds[0].1;
    channel.send(&Word::Receive)?;
    // The peer's message buffer is empty after this answer, so raw bytes can follow.
    pong(&mut channel)?;
    let begun = Instant::now();
    pour(channel.stream())?;
    pong(&mut channel)?;
    let there = BYTES as f64 / begun.elapsed().as_secs_f64();
    channel.send(&Word::Send)?;
    let begun = Instant::now();
    drain(channel.stream())?;
    let back = BYTES as f64 / begun.elapsed().as_secs_f64();
    Ok(Measured { latency, bandwidth: [there, back], skew })
}

fn pong(channel: &mut Channel) -> Result<f64> {
    match channel.receive(WAIT)? {
        Received::Message(Word::Pong(time)) => Ok(time),
        Received::Message(other) => anyhow::bail!("{} sent the unexpected message {other:?}", channel.peer()),
        Received::Nothing => anyhow::bail!("{} did not answer in time", channel.peer()),
        Received::Closed => anyhow::bail!("{} closed the connection", channel.peer()),
    }
}

/// Serves the measurement of one peer.
fn serve(stream: TcpStream, secret: &Secret) -> Result<()> {
    let mut channel = Channel::answer(stream, secret)?;
    loop {
        match channel.receive(WAIT)? {
            Received::Message(Word::Ping) => channel.send(&Word::Pong(now()))?,
            Received::Message(Word::Receive) => {
                channel.send(&Word::Pong(now()))?;
                drain(channel.stream())?;
                channel.send(&Word::Pong(now()))?;
            }
            Received::Message(Word::Send) => pour(channel.stream())?,
            Received::Message(other @ Word::Pong(_)) => {
                anyhow::bail!("{} sent the unexpected message {other:?}", channel.peer())
            }
            Received::Nothing => anyhow::bail!("{} sent nothing in time", channel.peer()),
            Received::Closed => return Ok(()),
        }
    }
}

fn pour(mut stream: &TcpStream) -> Result<()> {
    stream.set_write_timeout(Some(WAIT))?;
    let chunk = vec![0; CHUNK];
    for _ in 0..BYTES / CHUNK {
        stream.write_all(&chunk).context("cannot transfer the test data")?;
    }
    Ok(())
}

fn drain(mut stream: &TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(WAIT))?;
    let mut chunk = vec![0; CHUNK];
    for _ in 0..BYTES / CHUNK {
        stream.read_exact(&mut chunk).context("cannot transfer the test data")?;
    }
    Ok(())
}
