//! The loop that accepts connections: a thread each, a bounded number of them, each for a bounded time.

use super::places::{Places, VisitorPlace};
use super::request::PageRequest;
use super::{gate::Gate, response::PageResponse};
use herringbone_sys::fork::Guarded;
use rustix::event::{PollFd, PollFlags};
use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How long a client has to take a part of an answer.
const TAKING: Duration = Duration::from_secs(5);
/// How long a connection stays open after its answer, so that bytes that the client still sends do not cancel the answer.
const LINGER: Duration = Duration::from_secs(1);
/// How many connections stay open so at once.
const LINGERING: usize = 128;
/// How long it rests if the system cannot accept a connection.
const REST: Duration = Duration::from_millis(100);

/// The answers to clients.
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
        places: Places::default(),
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
    places: Places,
    /// Connections that were refused, and when.
    lingering: VecDeque<(Arc<Guarded<TcpStream>>, Instant)>,
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
        // No forked child keeps it open.
        let Ok(stream) = Guarded::new(stream).map(Arc::new) else { return };
        let Some(place) = self.places.take(&stream) else { return self.refuse(stream) };
        let (gate, site) = (self.gate.clone(), self.site.clone());
        let spawned = thread::Builder::new().name("hb-admin-http".to_owned()).spawn(move || {
            // A client that is gone wants no answer.
            let _gone = converse(&stream, &place, &gate, &*site);
        });
        // Without a thread the connection ends, and the place is free again.
        drop(spawned);
    }

    fn refuse(&mut self, stream: Arc<Guarded<TcpStream>>) {
        let is_sent = stream.set_nonblocking(true).is_ok()
            && PageResponse::too_many().send(&mut &**stream, false).is_ok()
            && stream.shutdown(Shutdown::Write).is_ok();
        if is_sent {
            self.lingering.push_back((stream, Instant::now()));
        }
    }

    /// Ends connections that were refused.
    fn let_go(&mut self) {
        let mut sent = [0; 4096];
        self.lingering.retain_mut(|(stream, since)| {
            let is_gone = match (&***stream).read(&mut sent) {
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

/// Takes a request and answers it.
fn converse(stream: &TcpStream, place: &VisitorPlace, gate: &Gate, site: &dyn Site) -> io::Result<()> {
    let mut own = stream;
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(TAKING))?;
    let received = PageRequest::receive(own);
    if !place.is_answered() {
        return PageResponse::too_many().send(&mut own, false);
    }
    let (response, wants_header) = match received {
        Ok(request) => (answer(&request, gate, site), request.wants_header),
        Err(bad) => match PageResponse::bad_request(bad) {
            Some(response) => (response, false),
            None => return Ok(()),
        },
    };
    response.send(&mut own, wants_header)?;
    stream.shutdown(Shutdown::Write)?;
    if place.lingers() { linger(own) } else { Ok(()) }
}

fn answer(request: &PageRequest, gate: &Gate, site: &dyn Site) -> PageResponse {
    match gate.admit(request, site.is_open(&request.path)) {
        Ok(()) => site.answer(request),
        Err(refused) => PageResponse::refusal(refused),
    }
}

/// Reads what the client still sends, for a while: a connection that is closed with bytes unread is reset, and the answer lost.
fn linger(mut stream: &TcpStream) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::super::places::PLACES;
    use super::*;
    use std::io::Write;

    struct Hello;

    impl Site for Hello {
        fn answer(&self, _: &PageRequest) -> PageResponse {
            PageResponse::line(200, "hello")
        }

        fn is_open(&self, _: &str) -> bool {
            true
        }
    }

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

    fn begin() -> SocketAddr {
        serve("127.0.0.1:0".parse().unwrap(), Gate::new("node-1", "", None), Arc::new(Hello)).unwrap()
    }

    fn client(address: SocketAddr, sends: &[u8]) -> TcpStream {
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        client.write_all(sends).unwrap();
        client
    }

    /// The status line of what a client is answered.
    fn status(client: &mut TcpStream) -> String {
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer.lines().next().unwrap_or_default().to_owned()
    }

    #[test]
    fn clients_that_send_nothing_keep_nobody_out() {
        let address = begin();
        let half = &REQUEST[..9];
        let mut silent: Vec<TcpStream> = (0..PLACES).map(|_| client(address, half)).collect();
        for _ in 0..3 {
            assert_eq!(status(&mut client(address, REQUEST)), "HTTP/1.1 200 OK");
        }
        // The one that came first has left. The others still have their places, except for places that were needed meanwhile.
        assert_eq!(status(&mut silent[0]), "HTTP/1.1 503 Service Unavailable");
        let mut last = silent.pop().unwrap();
        last.write_all(&REQUEST[9..]).unwrap();
        assert_eq!(status(&mut last), "HTTP/1.1 200 OK");
    }

    #[test]
    fn clients_that_keep_their_answers_keep_nobody_out() {
        let (address, mut kept) = (begin(), Vec::new());
        for _ in 0..2 * PLACES {
            let mut client = client(address, REQUEST);
            assert_eq!(status(&mut client), "HTTP/1.1 200 OK");
            kept.push(client);
        }
    }
}
