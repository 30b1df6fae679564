//! The destinations of a worker's requests: the server that has the range, which can change.

use alloc::{collections::BTreeSet, vec::Vec};

/// After so many milliseconds a worker asks again where nobody has a range.
const PAUSE: u64 = 10;

/// The ways of a worker's requests to servers.
///
/// The requests of one range are executed in the order of their numbers. If one of them is answered with
/// [elsewhere](Self::elsewhere), or its connection is lost, all unanswered requests are sent again in their order, the
/// first of them [marked](RoutedRequest::is_first). A server that has answered elsewhere gives that answer to all
/// requests of a range until it sees that mark. So no request passes another one.
#[derive(Clone, Debug)]
pub struct Routes {
    /// Whether servers have copies of each other's ranges.
    have_copies: bool,
    connected: Vec<bool>,
    ranges: Vec<RangeRoute>,
}

#[derive(Clone, Debug)]
struct RangeRoute {
    at: u32,
    /// The numbers of its requests.
    unanswered: BTreeSet<u64>,
    /// They are to go again, at this time.
    again: Option<u64>,
    /// Whether something was sent there since the range last changed its server.
    is_marked: bool,
}

/// A request that goes to a server now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoutedRequest {
    /// Its number.
    pub number: u64,
    /// The server's place.
    pub server: u32,
    /// Whether it is the first of its range there, and all before it were answered.
    pub is_first: bool,
}

impl Routes {
    /// Routes to `servers` servers. By default each has one range. None is connected.
    pub fn new(servers: u32, have_copies: bool) -> Self {
        let route = |at| RangeRoute { at, unanswered: BTreeSet::new(), again: None, is_marked: false };
        let ranges = (0..servers).map(route).collect();
        Self { have_copies, connected: (0..servers).map(|_| false).collect(), ranges }
    }

    /// A new request for a range. Returns its destination, if it does not have to wait.
    pub fn send(&mut self, range: u32, number: u64) -> Option<RoutedRequest> {
        let route = self.ranges.get_mut(range as usize)?;
        route.unanswered.insert(number);
        if route.again.is_some() || !self.connected[route.at as usize] {
            route.again.get_or_insert(0);
            return None;
        }
        let is_first = !core::mem::replace(&mut route.is_marked, true);
        Some(RoutedRequest { number, server: route.at, is_first })
    }

    /// A request was answered, or is not to be asked any more.
    pub fn answered(&mut self, range: u32, number: u64) {
        if let Some(route) = self.ranges.get_mut(range as usize) {
            route.unanswered.remove(&number);
        }
    }

    /// A server does not have a range. It knows that `owner` has it, or that no server does.
    pub fn elsewhere(&mut self, range: u32, from: u32, owner: Option<u32>, now: u64) {
        let servers = self.connected.len() as u32;
        let Some(route) = self.ranges.get_mut(range as usize) else { return };
        if route.at != from || route.again.is_some() {
            return;
        }
        let owner = owner.filter(|owner| *owner < servers && *owner != from);
        route.at = owner.unwrap_or((from + 1) % servers);
        route.again = Some(if owner.is_some() { now } else { now + PAUSE });
    }

    /// A server has connected.
    pub fn connected(&mut self, server: u32) {
        self.connected[server as usize] = true;
    }

    /// A connection is lost. In ranges without copies, requests wait for the next connection.
    pub fn lost(&mut self, server: u32, now: u64) {
        self.connected[server as usize] = false;
        for route in self.ranges.iter_mut().filter(|route| route.at == server) {
            route.again.get_or_insert(now);
        }
    }

    /// The requests that go again now, in their order.
    pub fn due(&mut self, now: u64) -> Vec<RoutedRequest> {
        let (mut due, servers) = (Vec::new(), self.connected.len() as u32);
        for route in &mut self.ranges {
            if route.again.is_none_or(|again| now < again) {
                continue;
            }
            if !self.connected[route.at as usize] && self.have_copies {
                let others = (1..servers).map(|next| (route.at + next) % servers);
                let found = others.into_iter().find(|server| self.connected[*server as usize]);
                route.at = found.unwrap_or(route.at);
            }
            if self.connected[route.at as usize] {
                (route.again, route.is_marked) = (None, !route.unanswered.is_empty());
                let (server, first) = (route.at, route.unanswered.first().copied());
                let numbers = route.unanswered.iter().copied();
                due.extend(numbers.map(|number| RoutedRequest {
                    number,
                    server,
                    is_first: Some(number) == first,
                }));
            }
        }
        due
    }

    /// When something is due for which a server is connected, if anything is.
    pub fn next_due(&self) -> Option<u64> {
        self.ranges.iter().filter(|route| !route.unanswered.is_empty()).filter_map(|route| route.again).min()
    }

    /// The server to which requests of a range go.
    pub fn server(&self, range: u32) -> u32 {
        self.ranges.get(range as usize).map_or(0, |route| route.at)
    }
}
