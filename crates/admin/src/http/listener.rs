//! The loop that takes connections: a thread for each, a bounded number of them, each for a bounded time.

use super::{gate::Gate, request::PageRequest, response::PageResponse};
use herringbone_sys::fork::Guarded;
use rustix::event::{PollFd, PollFlags};
use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How many requests are answered at once.
const CONNECTIONS: usize = 16;
/// How long a client has to take a part of an answer.
const TAKING: Duration = Duration::from_secs(5);
/// How long a connection is kept after its answer, so that what the client still sends does not take the answer from it.
const LINGER: Duration = Duration::from_secs(1);
/// How many connections are kept so at once.
const LINGERING: usize = 128;
/// How long it rests if the system has no connection to give.
const REST: Duration = Duration::from_millis(100);

/// What is answered to clients.
pub(crate) trait Site: Send + Sync + 'static {
    /// The answer to a request that was let in.
    fn answer(&self, request: &PageRequest) -> PageResponse;

    /// Whether a path is shown to everybody, without a token.
    fn is_open(&self, path: &str) -> bool;
}

/// Begins to listen, and answers from a thread until the process ends. Returns where it listens.
pub(crate) fn serve(address: SocketAddr, gate: Gate, site: Arc<dyn Site>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let own = listener.local_addr()?;
    let entrance = Entrance {
        listener: Guarded::new(listener)?,
        gate: Arc::new(gate),
        site,
        busy: Arc::default(),
        lingering: VecDeque::new(),
    };
    thread::Builder::new().name("hb-admin".to_owned()).spawn(move || entrance.run())?;
    Ok(own)
}

/// Where clients come in.
struct Entrance {
    listener: Guarded<TcpListener>,
    gate: Arc<Gate>,
    site: Arc<dyn Site>,
    /// How many threads answer.
    busy: Arc<AtomicUsize>,
    /// Connections that were refused, and when.
    lingering: VecDeque<(TcpStream, Instant)>,
}

impl Entrance {
    fn run(mut self) {
        // A forked child has no such thread, and a descriptor that is not this one.
        loop {
            self.wait();
            self.let_go();
            match self.listener.accept() {
                Ok((stream, _)) => self.admit(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // No descriptors are left, or the client is gone already.
                Err(_) => thread::sleep(REST),
            }
        }
    }

    fn wait(&self) {
        let soon = rustix::time::Timespec { tv_sec: 0, tv_nsec: REST.as_nanos() as i64 };
        let timeout = (!self.lingering.is_empty()).then_some(&soon);
        // An interrupted wait is a short one.
        let _woken = rustix::event::poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], timeout);
    }

    fn admit(&mut self, stream: TcpStream) {
        if self.busy.fetch_add(1, Ordering::SeqCst) < CONNECTIONS {
            let (gate, site, busy) = (self.gate.clone(), self.site.clone(), self.busy.clone());
            let place = Place(busy);
            let spawned = thread::Builder::new().name("hb-admin-http".to_owned()).spawn(move || {
                let _place = place;
                // A client that is gone wants no answer.
                let _gone = converse(stream, &gate, &*site);
            });
            // Without a thread the connection ends, and the place is free again.
            drop(spawned);
            return;
        }
        self.busy.fetch_sub(1, Ordering::SeqCst);
        self.refuse(stream);
    }

    fn refuse(&mut self, mut stream: TcpStream) {
        let is_sent = stream.set_nonblocking(true).is_ok()
            && PageResponse::too_many().send(&mut stream, false).is_ok()
            && stream.shutdown(Shutdown::Write).is_ok();
        if is_sent {
            self.lingering.push_back((stream, Instant::now()));
        }
    }

    /// Ends connections that were refused.
    fn let_go(&mut self) {
        let mut sent = [0; 4096];
        self.lingering.retain_mut(|(stream, since)| {
            let is_gone = match stream.read(&mut sent) {
                Ok(count) => count == 0,
                Err(error) => error.kind() != io::ErrorKind::WouldBlock,
            };
            !is_gone && since.elapsed() < LINGER
        });
        while self.lingering.len() > LINGERING {
            self.lingering.pop_front();
        }
    }
}

/// One of the places for those that are answered.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Takes a request and answers it.
fn converse(stream: TcpStream, gate: &Gate, site: &dyn Site) -> io::Result<()> {
    // No forked child keeps it open.
    let stream = Guarded::new(stream)?;
    let mut own = stream.try_clone()?;
    own.set_nonblocking(false)?;
    own.set_write_timeout(Some(TAKING))?;
    let (response, wants_header) = match PageRequest::receive(&mut own) {
        Ok(request) => (answer(&request, gate, site), request.wants_header),
        Err(bad) => match PageResponse::bad_request(bad) {
            Some(response) => (response, false),
            None => return Ok(()),
        },
    };
    response.send(&mut own, wants_header)?;
    own.shutdown(Shutdown::Write)?;
    linger(&mut own)
}

fn answer(request: &PageRequest, gate: &Gate, site: &dyn Site) -> PageResponse {
    match gate.admit(request, site.is_open(&request.path)) {
        Ok(()) => site.answer(request),
        Err(refused) => PageResponse::refusal(refused),
    }
}

/// Reads what the client still sends, for a while: a connection that is closed with bytes unread is reset, and the answer lost.
fn linger(stream: &mut TcpStream) -> io::Result<()> {
    let until = Instant::now() + LINGER;
    let mut sent = [0; 4096];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        stream.set_read_timeout(Some(left))?;
        if stream.read(&mut sent)? == 0 {
            return Ok(());
        }
    }
}
