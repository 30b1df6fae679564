//! A bounded number of places for clients, and the choice of who leaves when another client comes and all are taken.
//!
//! Otherwise a client that sends nothing would keep its place until the time limit of a request, and sixteen of them would keep
//! everybody out.

use herringbone_sys::fork::Guarded;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many clients have a place at once.
pub(crate) const PLACES: usize = 16;
/// How long the thread of a client that has to leave can take to end.
const LEAVING: Duration = Duration::from_secs(1);

/// How far a client has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It has not sent a complete request.
    Asks,
    /// It gets its answer, and nobody takes its place.
    Answered,
    /// It has its answer, and the connection is still open.
    Lingers,
    /// Its place is for another client.
    Leaves,
}

/// A client that has a place.
struct Visitor {
    number: u64,
    stream: Arc<Guarded<TcpStream>>,
    stage: Stage,
}

#[derive(Default)]
struct Taken {
    /// How many places were given so far.
    given: u64,
    /// Who has a place, in the order in which they came.
    visitors: Vec<Visitor>,
}

impl Taken {
    /// Takes the place of a client: of the one that has waited longest without a complete request, or else of the first that has its answer.
    /// Returns whether there is one that leaves.
    fn send_away(&mut self) -> bool {
        let at = |stage| self.visitors.iter().position(|visitor| visitor.stage == stage);
        let Some(at) = at(Stage::Leaves).or(at(Stage::Asks)).or(at(Stage::Lingers)) else { return false };
        let visitor = &mut self.visitors[at];
        visitor.stage = Stage::Leaves;
        // Its thread reads the end of what the client sends; what it writes still goes.
        let _gone = visitor.stream.shutdown(Shutdown::Read);
        true
    }
}

/// The places, for the loop that takes connections and for all threads that answer.
#[derive(Clone, Default)]
pub(crate) struct Places(Arc<(Mutex<Taken>, Condvar)>);

impl Places {
    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a client. If all are taken, the one that has waited longest without a complete request leaves; `None` if all
    /// clients get an answer just now.
    pub(crate) fn take(&self, stream: &Arc<Guarded<TcpStream>>) -> Option<VisitorPlace> {
        let mut taken = self.lock();
        let until = Instant::now() + LEAVING;
        while taken.visitors.len() >= PLACES {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !taken.send_away() {
                return None;
            }
            taken = self.0.1.wait_timeout(taken, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let number = taken.given;
        taken.given += 1;
        taken.visitors.push(Visitor { number, stream: stream.clone(), stage: Stage::Asks });
        Some(VisitorPlace { places: self.clone(), number })
    }
}

/// A client's place, which is free again when this is dropped.
pub(crate) struct VisitorPlace {
    places: Places,
    number: u64,
}

impl VisitorPlace {
    /// The request is complete. Returns whether the client still has its place.
    pub(crate) fn is_answered(&self) -> bool {
        self.go_on(Stage::Answered)
    }

    /// The answer is written. Returns whether the client still has its place.
    pub(crate) fn lingers(&self) -> bool {
        self.go_on(Stage::Lingers)
    }

    fn go_on(&self, next: Stage) -> bool {
        let mut taken = self.places.lock();
        let own = taken.visitors.iter_mut().find(|visitor| visitor.number == self.number);
        let Some(own) = own.filter(|own| own.stage != Stage::Leaves) else { return false };
        own.stage = next;
        true
    }
}

impl Drop for VisitorPlace {
    fn drop(&mut self) {
        self.places.lock().visitors.retain(|visitor| visitor.number != self.number);
        self.places.0.1.notify_all();
    }
}
