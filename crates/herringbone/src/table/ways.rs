//! A worker's requests that are not answered, and the connections on which they go.

use super::{
    calls::{AnswerSource, TableCall},
    link::{MessageLink, ReceivedPayload},
    request_message::RequestMessage,
    spare,
};
use crate::{
    core::{
        session::handshake::Identity,
        table::{
            KeyForm, KnownKeys, RequestAddress, RoutedRequest, Routes, RowKeys, TableAnswer, TableRequest,
        },
    },
    fabric::greet::GreetError,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

/// What [`RequestWays::patience`] is where nobody says otherwise.
const PATIENCE: Duration = Duration::from_secs(10);

/// After so long without an answer another server is asked who has the range: its own may have been stopped, or cut off.
const DOUBT: Duration = Duration::from_secs(1);

/// A request, and where its answer goes.
pub(super) struct Sent {
    pub(super) range: u32,
    pub(super) call: Arc<TableCall>,
    /// Where rows go.
    pub(super) place: Range<usize>,
    /// It is sent again if its server is lost.
    pub(super) message: RequestMessage,
}

/// Requests and connections.
pub(super) struct RequestWays {
    /// Whether servers have copies of each other's ranges.
    have_copies: bool,
    routes: Routes,
    servers: Vec<KnownServer>,
    open: BTreeMap<u64, Sent>,
    /// The number of the last request.
    last: u64,
    /// Questions who has a range.
    asked: BTreeMap<u64, u32>,
    /// Of ranges with requests that are not answered, since when none was, or another server was asked.
    doubted: BTreeMap<u32, Instant>,
    /// Since when nobody has a range.
    nobody: BTreeMap<u32, Instant>,
    /// Since when servers know of no owner of a range, though there may be one.
    unowned: BTreeMap<u32, Instant>,
    /// For how long calls of a server fail, or all say that nobody has a range, until it counts as lost.
    patience: Duration,
    began: Instant,
}

#[derive(Default)]
struct KnownServer {
    link: Option<MessageLink>,
    /// The lists of keys that the server knows from this connection.
    keys: KnownKeys,
    /// The life of its process, as it was last.
    life: Option<u64>,
    awaits_room: bool,
    /// Since when there is no connection.
    absent: Option<Instant>,
    /// Why there is none.
    reason: String,
    /// It is lost for good, and all that it had.
    is_lost: bool,
    /// Since when another one is at its address, which is of no use.
    other: Option<Instant>,
}

impl KnownServer {
    /// How keys go over its connection now.
    fn form(&self, keys: Option<&RowKeys>) -> KeyForm {
        keys.and_then(RowKeys::list).map_or(KeyForm::Whole, |list| self.keys.form(list))
    }
}

impl RequestWays {
    pub(super) fn new(servers: u32, have_copies: bool) -> Self {
        Self {
            have_copies,
            routes: Routes::new(servers, have_copies),
            servers: (0..servers)
                .map(|_| KnownServer { absent: Some(Instant::now()), ..KnownServer::default() })
                .collect(),
            open: BTreeMap::new(),
            last: 0,
            asked: BTreeMap::new(),
            doubted: BTreeMap::new(),
            nobody: BTreeMap::new(),
            unowned: BTreeMap::new(),
            patience: PATIENCE,
            began: Instant::now(),
        }
    }

    /// To be told sooner, or later, that something is lost.
    #[cfg(test)]
    pub(super) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    pub(super) fn link(&self, server: u32) -> Option<&MessageLink> {
        self.servers[server as usize].link.as_ref()
    }

    pub(super) fn has_more(&self) -> bool {
        !self.open.is_empty() && self.servers.iter().any(|server| server.link.is_some())
    }

    /// How the keys of a request would go to a range now: a guess, as it may go later, or elsewhere.
    pub(super) fn form(&self, range: u32, request: &TableRequest) -> KeyForm {
        self.servers[self.routes.server(range) as usize].form(request.keys())
    }

    /// The next request gets at least this number.
    pub(super) fn next_number(&self) -> u64 {
        self.last + 1
    }

    /// Sends a request. Returns the server to whose connection it was put, if it does not have to wait.
    pub(super) fn send(&mut self, sent: Sent) -> Option<u32> {
        let (range, at) = (sent.range, self.routes.server(sent.range));
        if self.servers[at as usize].is_lost && !self.have_copies {
            sent.call.lost(at, &self.servers[at as usize].reason);
            return None;
        }
        self.last += 1;
        let number = self.last;
        self.open.insert(number, sent);
        let routed = self.routes.send(range, number)?;
        self.put_in_line(routed);
        Some(routed.server)
    }

    fn put_in_line(&mut self, routed: RoutedRequest) {
        let RoutedRequest { number, server, is_first } = routed;
        let Some(sent) = self.open.get_mut(&number) else { return };
        let known = &mut self.servers[server as usize];
        let (address, form) =
            (RequestAddress { range: sent.range, is_first }, known.form(sent.message.keys()));
        let Some(link) = &mut known.link else { return };
        match sent.message.payload(address, form) {
            Ok(payload) => {
                link.send_kept(number, payload);
                // The keys are in line on this connection: what is put there later may name them by their number.
                if let Some(list) = sent.message.keys().and_then(RowKeys::list) {
                    known.keys.sent(list, form);
                }
            }
            Err(error) => {
                self.routes.answered(sent.range, number);
                sent.call.lost(server, &error.to_string());
                self.open.remove(&number);
            }
        }
    }

    /// Puts what is to go again in line. Returns the servers to which it goes.
    pub(super) fn send_again(&mut self) -> Vec<u32> {
        let now = self.now();
        let mut servers = Vec::new();
        for routed in self.routes.due(now) {
            self.put_in_line(routed);
            servers.push(routed.server);
        }
        servers.dedup();
        servers
    }

    /// After how long something is to go again.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.routes.next_due().map(|due| Duration::from_millis(due.saturating_sub(self.now()).max(1)))
    }

    /// Takes the answers that have come.
    ///
    /// # Errors
    /// Why the connection is of no use any more.
    pub(super) fn receive(&mut self, server: u32) -> Result<(), String> {
        let Some(link) = &mut self.servers[server as usize].link else { return Ok(()) };
        let mut received = Vec::new();
        let result = link.receive(&mut received);
        for ReceivedPayload { number, payload } in received {
            match TableAnswer::decode(&payload) {
                Ok((answer, rows)) => self.answered(server, number, answer, rows),
                Err(problem) => self.answered(server, number, TableAnswer::Refused(problem), &[]),
            }
            spare::keep(payload);
        }
        result.map_err(|reason| reason.to_string())
    }

    fn answered(&mut self, server: u32, number: u64, answer: TableAnswer, rows: &[u8]) {
        if let Some(range) = self.asked.remove(&number) {
            let at = self.routes.server(range);
            if let TableAnswer::Elsewhere { owner: Some(owner), .. } = answer
                && owner != at
            {
                let now = self.now();
                self.routes.elsewhere(range, at, Some(owner), now);
            }
            return;
        }
        let Some(range) = self.open.get(&number).map(|sent| sent.range) else { return };
        self.doubted.insert(range, Instant::now());
        if let TableAnswer::Elsewhere { owner, is_lost } = answer {
            match owner {
                None => drop(self.unowned.entry(range).or_insert_with(Instant::now)),
                Some(_) => drop(self.unowned.remove(&range)),
            }
            if is_lost {
                self.nobody.entry(range).or_insert_with(Instant::now);
            } else {
                self.nobody.remove(&range);
            }
            let now = self.now();
            return self.routes.elsewhere(range, server, owner, now);
        }
        self.nobody.remove(&range);
        self.unowned.remove(&range);
        self.routes.answered(range, number);
        if let Some(Sent { call, place, message, .. }) = self.open.remove(&number) {
            call.answered(AnswerSource { range, server }, answer, rows, place);
            message.recycle();
        }
    }

    /// Writes what the socket takes. Returns whether the connection awaits room, if that has changed.
    ///
    /// # Errors
    /// Why the connection is of no use any more.
    pub(super) fn flush(&mut self, server: u32) -> Result<Option<bool>, String> {
        let known = &mut self.servers[server as usize];
        let Some(link) = &mut known.link else { return Ok(None) };
        let awaits_room = !link.flush().map_err(|reason| reason.to_string())?;
        let has_changed = std::mem::replace(&mut known.awaits_room, awaits_room) != awaits_room;
        Ok(has_changed.then_some(awaits_room))
    }

    /// There is a connection with a server. One without copies that was started anew has lost all that it had.
    pub(super) fn connected(&mut self, server: u32, link: MessageLink, there: &Identity) {
        let known = &mut self.servers[server as usize];
        let is_new = known.life.is_some_and(|life| life != there.incarnation);
        known.life = Some(there.incarnation);
        if is_new && !self.have_copies {
            return self.give_up(server, "it was restarted, and has lost its tables");
        }
        (known.link, known.absent, known.awaits_room) = (Some(link), None, false);
        known.keys = KnownKeys::default();
        known.other = None;
        self.routes.connected(server);
    }

    /// A connection is lost.
    pub(super) fn lost(&mut self, server: u32, reason: &str) {
        let now = self.now();
        let known = &mut self.servers[server as usize];
        known.link = None;
        known.absent.get_or_insert_with(Instant::now);
        known.reason = reason.to_owned();
        self.asked.clear();
        self.routes.lost(server, now);
    }

    /// Whether a server is lost for good.
    pub(super) fn has_lost_one(&self) -> bool {
        self.servers.iter().any(|known| known.is_lost)
    }

    /// The servers that are to be called.
    pub(super) fn absent(&self) -> Vec<u32> {
        let is_absent = |known: &KnownServer| known.link.is_none() && !known.is_lost;
        (0..).zip(&self.servers).filter(|(_, known)| is_absent(known)).map(|(server, _)| server).collect()
    }

    /// A call of a server has failed.
    pub(super) fn is_away(&mut self, server: u32, error: &GreetError) {
        let known = &mut self.servers[server as usize];
        let waited = known.absent.map(|since| since.elapsed()).unwrap_or_default();
        let is_refused =
            matches!(error, GreetError::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused);
        if !self.have_copies && (is_refused || waited >= self.patience || !error.may_pass()) {
            let reason = format!("{}; then: {error}", known.reason);
            self.give_up(server, &reason);
        }
    }

    /// At a server's address is another one, which is of no use.
    pub(super) fn is_other(&mut self, server: u32, reason: &str) {
        let known = &mut self.servers[server as usize];
        known.other.get_or_insert_with(Instant::now);
        if known.reason != reason {
            known.reason = reason.to_owned();
            crate::log::warn("tables", reason);
        }
    }

    /// A server without copies is lost.
    fn give_up(&mut self, server: u32, reason: &str) {
        let reason = format!("{reason} (once it is back, make another ParameterServer, and its tables)");
        self.servers[server as usize].is_lost = true;
        self.fail(server, &reason);
        self.servers[server as usize].reason = reason;
    }

    /// Asks others who has ranges whose servers have not answered for long. Returns whom.
    pub(super) fn doubt(&mut self) -> Vec<u32> {
        let open: BTreeSet<u32> = self.open.values().map(|sent| sent.range).collect();
        self.doubted.retain(|range, _| open.contains(range));
        let mut asked = Vec::new();
        for range in open.into_iter().filter(|_| self.have_copies) {
            let since = self.doubted.entry(range).or_insert_with(Instant::now);
            if since.elapsed() < DOUBT {
                continue;
            }
            *since = Instant::now();
            let (at, count) = (self.routes.server(range), self.servers.len() as u32);
            // Another one each time.
            self.last += 1;
            let server = (at + 1 + (self.last as u32) % (count - 1)) % count;
            if let Some(link) = &mut self.servers[server as usize].link {
                let mut payload = RequestAddress { range, is_first: false }.encode().to_vec();
                payload.extend(TableRequest::Locate.encode().unwrap_or_default());
                link.send(self.last, payload);
                self.asked.insert(self.last, range);
                asked.push(server);
            }
        }
        asked
    }

    /// Requests fail that go to a range nobody has had for long, or if no server has answered for long.
    pub(super) fn give_up_lost(&mut self) {
        if !self.have_copies {
            return;
        }
        let reason =
            "the servers that had this range have ended, and no copy of it is left: restart all servers";
        let patience = self.patience;
        let late = |since: &Instant| since.elapsed() >= patience;
        let lost: Vec<u32> =
            self.nobody.iter().filter(|(_, since)| late(since)).map(|(range, _)| *range).collect();
        for range in lost {
            self.nobody.remove(&range);
            self.fail(range, reason);
        }
        // Servers that refuse each other make no group, and somebody has to do something.
        let is_other = |server: &&KnownServer| server.other.as_ref().is_some_and(late);
        if let Some(reason) = self.servers.iter().find(is_other).map(|server| server.reason.clone()) {
            let waiting: Vec<u32> =
                self.unowned.iter().filter(|(_, since)| late(since)).map(|(range, _)| *range).collect();
            for range in waiting {
                self.unowned.remove(&range);
                self.fail(range, &reason);
            }
        }
        if self.servers.iter().all(|server| server.absent.as_ref().is_some_and(late)) {
            for range in 0..self.servers.len() as u32 {
                let reason = self.servers[range as usize].reason.clone();
                self.fail(range, &format!("no server answers any more: {reason}"));
            }
        }
    }

    /// The requests of a range will not be answered.
    fn fail(&mut self, range: u32, reason: &str) {
        let numbers: Vec<u64> =
            self.open.iter().filter(|(_, sent)| sent.range == range).map(|(number, _)| *number).collect();
        for number in numbers {
            self.routes.answered(range, number);
            if let Some(sent) = self.open.remove(&number) {
                sent.call.lost(range, reason);
            }
        }
    }

    /// The servers that are to answer a call.
    pub(super) fn unanswered(&self, call: &TableCall) -> Vec<u32> {
        let is_of = |sent: &&Sent| std::ptr::eq(Arc::as_ptr(&sent.call), call);
        let mut servers: Vec<u32> =
            self.open.values().filter(is_of).map(|sent| self.routes.server(sent.range)).collect();
        servers.sort_unstable();
        servers.dedup();
        servers
    }
}

#[cfg(test)]
mod tests;
