//! The work of a server's thread: requests from workers, messages from other servers, and answers once copies have the
//! operations.

use super::{
    kept_push::KeptPayload,
    link::ReceivedPayload,
    memory::TableMemory,
    optimizers::OwnOptimizers,
    options::TableOptions,
    shared::{ServiceShared, TableArrival, lock},
    tables::{ServedRequest, TableCaller},
};
use crate::{
    core::{
        session::{
            Role,
            status::{TABLES, TableServerStatus},
        },
        table::{
            RequestAddress, TableAnswer, TableError, TableRequest,
            replication::{SERVERS_MOST, ServerLife},
        },
    },
    transport::Broken,
};
use rustix::event::epoll;
pub(super) use state::Serving;
use state::{Away, ConnectedProcess, Disk, HeldAnswer, ServedConnection, ServingGroup, Shard};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    mem::MaybeUninit,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

mod disk;
mod group;
mod state;
#[cfg(test)]
mod tests;

/// After this many bytes in line on a connection no more rows are read for it.
const QUEUED_BYTES: usize = 1 << 20;
/// How many connections there may be.
const CONNECTIONS: usize = 4096;
/// How many events one look may find.
const EVENTS: usize = 64;
/// The bell's number, which is no connection's.
const BELL: u64 = 0;
/// The longest sleep.
const NAP: Duration = Duration::from_millis(20);

impl Serving {
    pub(super) fn new(
        options: &TableOptions,
        optimizers: OwnOptimizers,
        incarnation: u64,
        shared: Arc<ServiceShared>,
    ) -> io::Result<Self> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&poller, shared.bell.fd(), epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        Ok(Self {
            shared,
            patience: options.patience,
            poller,
            memory: TableMemory::new(options.memory_bytes),
            optimizers,
            shards: BTreeMap::new(),
            connections: BTreeMap::new(),
            next: BELL + 1,
            present: BTreeMap::new(),
            away: Vec::new(),
            group: options.group.as_ref().map(|group| ServingGroup::new(group, incarnation)),
            to_write: BTreeSet::new(),
            disk: Disk::new(options.data.clone()),
        })
    }

    pub(super) fn run(&mut self) {
        let mut listened = Instant::now();
        while !self.shared.is_over.load(Ordering::SeqCst) {
            self.turn();
            if listened.elapsed() >= NAP {
                listened = Instant::now();
                let heard = self.group.iter().flat_map(|group| group.node.heard());
                *lock(&self.shared.heard) = heard.map(|process| (process.server, process.life)).collect();
            }
        }
    }

    /// Does what is to be done, or sleeps a bit.
    fn turn(&mut self) {
        for number in self.sleep() {
            if number == BELL {
                // What it rang for is looked at now.
                let _drained = self.shared.bell.drain();
                self.take_arrivals();
                self.answer_inquiries();
            } else {
                self.read(number);
            }
            self.write_all();
        }
        self.look_after_group();
        self.look_after_disk();
        self.give_up_those_away();
        self.write_all();
    }

    /// Tells those who ask how this server stands.
    fn answer_inquiries(&self) {
        let inquiries = std::mem::take(&mut *lock(&self.shared.inquiries));
        for inquiry in inquiries {
            // Who does not wait any more does not hear it.
            let _unheard = inquiry.send(self.status());
        }
    }

    fn status(&self) -> TableServerStatus {
        let is_present = |worker, life| self.present.contains_key(&(worker, life));
        let group = self.group.as_ref().map(ServingGroup::status).unwrap_or_default();
        let mut tables: Vec<_> =
            self.shards.values().flat_map(|shard| shard.tables.status(is_present)).collect();
        tables.sort_by(|one, other| (&one.name, one.range).cmp(&(&other.name, other.range)));
        let unlisted = tables.len().saturating_sub(TABLES) as u32;
        tables.truncate(TABLES);
        let (used, limit) = self.memory.used_and_limit();
        TableServerStatus { used, limit, tables, unlisted, ..group }
    }

    /// The connections that are ready.
    fn sleep(&self) -> Vec<u64> {
        let mut room = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        let nap = if self.has_images() { Duration::ZERO } else { NAP };
        let limit = rustix::time::Timespec { tv_sec: 0, tv_nsec: nap.as_nanos() as i64 };
        // An interrupted sleep is a short one.
        epoll::wait(&self.poller, &mut room[..], Some(&limit))
            .map(|(events, _)| events.iter().map(|event| event.data.u64()).collect())
            .unwrap_or_default()
    }

    fn take_arrivals(&mut self) {
        let arrivals = std::mem::take(&mut *lock(&self.shared.arrivals));
        for TableArrival { link, who } in arrivals {
            let number = self.next;
            let watched = link.fd().map(|fd| {
                epoll::add(&self.poller, fd, epoll::EventData::new_u64(number), epoll::EventFlags::IN)
            });
            // Who is not watched is let go, and calls again.
            if self.connections.len() >= CONNECTIONS || !matches!(watched, Some(Ok(()))) {
                continue;
            }
            self.next += 1;
            let process = match who.role {
                Role::TableServer => {
                    ConnectedProcess::Server(ServerLife { server: who.rank, life: who.incarnation })
                }
                _ => {
                    *self.present.entry((who.rank, who.incarnation)).or_default() += 1;
                    // If it is lost again it has all its time again.
                    self.away.retain(|away| (away.worker, away.life) != (who.rank, who.incarnation));
                    ConnectedProcess::Worker(TableCaller {
                        connection: number,
                        worker: who.rank,
                        life: who.incarnation,
                    })
                }
            };
            self.connections.insert(number, ServedConnection::new(link, process, &self.memory));
            if let ConnectedProcess::Server(peer) = process {
                self.greet_server(number, peer);
            }
        }
    }

    fn read(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let (mut received, process) = (Vec::new(), connection.process);
        let result = connection.link.receive(&mut received);
        for ReceivedPayload { number: request, payload } in received {
            match process {
                ConnectedProcess::Worker(caller) => self.request(&caller, request, payload),
                ConnectedProcess::Server(peer) => self.hear(number, peer, &payload),
            }
        }
        self.to_write.insert(number);
        if let Err(reason) = result {
            self.end(number, &reason);
        }
    }

    /// A worker's request.
    fn request(&mut self, caller: &TableCaller, number: u64, payload: Vec<u8>) {
        let answer = match RequestAddress::decode(&payload) {
            Err(error) => TableAnswer::Refused(error),
            Ok(RequestAddress { range, .. }) if range >= SERVERS_MOST => {
                TableAnswer::Refused(TableError::Malformed("a range that there is not".to_owned()))
            }
            Ok(RequestAddress { range, .. })
                if TableRequest::is_locate(&payload[RequestAddress::BYTES..]) =>
            {
                self.locate(range)
            }
            Ok(address) => {
                let Some(connection) = self.connections.get_mut(&caller.connection) else { return };
                match (connection.decode(payload), self.elsewhere(caller.connection, address)) {
                    (_, Some(answer)) => answer,
                    (Err(error), None) => TableAnswer::Refused(error),
                    (Ok((request, _)), None) if self.has_other_range(address.range, &request) => {
                        TableAnswer::Refused(TableError::Differs { what: "order of servers".to_owned() })
                    }
                    (Ok((request, payload)), None) => {
                        return self.serve(address.range, caller, number, request, payload);
                    }
                }
            }
        };
        if let Some(connection) = self.connections.get_mut(&caller.connection) {
            connection.link.send(number, answer.encode());
        }
    }

    /// Whether a worker opens a table of which this server, which is in no group, has another range: it lists the servers in another
    /// order than who made the table.
    fn has_other_range(&self, range: u32, request: &TableRequest) -> bool {
        let TableRequest::Open { name, .. } = request else { return false };
        let is_of_another = |(other, shard): (&u32, &Shard)| *other != range && shard.tables.has_name(name);
        self.group.is_none() && self.shards.iter().any(is_of_another)
    }

    fn serve(
        &mut self,
        range: u32,
        caller: &TableCaller,
        number: u64,
        request: TableRequest,
        payload: KeptPayload,
    ) {
        let mut served = self.served();
        let present = &self.present;
        let shard = self
            .shards
            .entry(range)
            .or_insert_with(|| Shard::new(range, &self.memory, &self.optimizers, false));
        let is_present = |worker, life| present.contains_key(&(worker, life));
        shard.tables.serve(caller, number, request, payload, is_present, &mut served);
        self.carry_on(range, served);
    }

    /// Where what comes of requests is put. What copies are to execute is noted if there may be any.
    fn served(&self) -> ServedRequest {
        ServedRequest { operations: self.group.is_some().then(Vec::new), ..ServedRequest::default() }
    }

    /// Copies are told what was done, and connections what came of it.
    fn carry_on(&mut self, range: u32, served: ServedRequest) {
        let mut all = VecDeque::from([served]);
        while let Some(ServedRequest { replies, operations, saves, restores }) = all.pop_front() {
            self.tell_copies(range, operations.unwrap_or_default());
            saves.into_iter().for_each(|save| self.save(range, save));
            restores.into_iter().for_each(|wanted| self.restore(range, wanted));
            for reply in replies {
                if let Some(connection) = self.connections.get_mut(&reply.connection) {
                    self.to_write.insert(reply.connection);
                    connection.replies.push_back((range, reply));
                } else if let Some(shard) = self.shards.get_mut(&range) {
                    let operations = self.group.is_some().then(Vec::new);
                    let mut more = ServedRequest { operations, ..ServedRequest::default() };
                    shard.tables.forget(&reply.content, &mut more);
                    all.push_back(more);
                }
            }
        }
    }

    fn write_all(&mut self) {
        while let Some(number) = self.to_write.pop_first() {
            self.write(number);
        }
    }

    /// Writes what a connection is to be told, as far as its socket takes it.
    fn write(&mut self, number: u64) {
        loop {
            self.fill(number);
            let Some(connection) = self.connections.get_mut(&number) else { return };
            match connection.link.flush() {
                Ok(true) if !connection.replies.is_empty() => {}
                Ok(is_flushed) => return self.await_room(number, !is_flushed),
                Err(reason) => return self.end(number, &reason),
            }
        }
    }

    /// Puts answers in line as long as not much is, or has them wait for copies.
    fn fill(&mut self, number: u64) {
        while let Some(connection) = self.connections.get_mut(&number)
            && connection.link.queued() < QUEUED_BYTES
            && let Some((range, reply)) = connection.replies.pop_front()
        {
            let mut served = self.served();
            let Some(shard) = self.shards.get_mut(&range) else { continue };
            let payload = shard.tables.payload(&reply.content, &mut served);
            let progress = self.group.as_ref().and_then(|group| group.node.progress(range));
            match progress.filter(|progress| progress.settled < progress.executed) {
                Some(progress) => shard.held.push_back(HeldAnswer {
                    sequence: progress.executed,
                    connection: number,
                    number: reply.number,
                    payload,
                }),
                None => {
                    if let Some(connection) = self.connections.get_mut(&number) {
                        connection.link.send(reply.number, payload);
                    }
                }
            }
            self.carry_on(range, served);
        }
    }

    fn await_room(&mut self, number: u64, wanted: bool) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if connection.awaits_room == wanted {
            return;
        }
        connection.awaits_room = wanted;
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, wanted);
        if let Some(fd) = connection.link.fd() {
            // A socket that the poller does not know any more is found to be broken.
            let _gone = epoll::modify(&self.poller, fd, epoll::EventData::new_u64(number), flags);
        }
    }

    /// A connection is over.
    fn end(&mut self, number: u64, reason: &Broken) {
        let Some(connection) = self.connections.remove(&number) else { return };
        if let Some(fd) = connection.link.fd() {
            // The descriptor closes right after this.
            let _gone = epoll::delete(&self.poller, fd);
        }
        match connection.process {
            ConnectedProcess::Worker(caller) => {
                if !matches!(reason, Broken::Closed | Broken::Io(_)) {
                    crate::log::warn("tables", format_args!("a worker's connection was closed: {reason}"));
                }
                self.miss(&caller);
                for (range, reply) in connection.replies {
                    let mut served = self.served();
                    if let Some(shard) = self.shards.get_mut(&range) {
                        shard.tables.forget(&reply.content, &mut served);
                    }
                    self.carry_on(range, served);
                }
            }
            ConnectedProcess::Server(peer) => self.miss_server(number, peer, reason, connection.link),
        }
    }

    /// A worker's connection has ended.
    fn miss(&mut self, caller: &TableCaller) {
        let TableCaller { worker, life, .. } = *caller;
        for shard in self.shards.values_mut() {
            shard.tables.disconnect(caller);
        }
        if let Some(count) = self.present.get_mut(&(worker, life)) {
            *count -= 1;
            if *count == 0 {
                self.present.remove(&(worker, life));
                self.away.push(Away { since: Instant::now(), worker, life });
            }
        }
    }

    /// The others go on without workers that have not come back.
    fn give_up_those_away(&mut self) {
        let Some(patience) = self.patience else { return };
        let late: Vec<Away> = self.away.extract_if(.., |away| away.since.elapsed() >= patience).collect();
        for Away { worker, life, .. } in late {
            if self.present.contains_key(&(worker, life)) {
                continue;
            }
            let owned: Vec<u32> = self.shards.keys().copied().filter(|range| self.executes(*range)).collect();
            for range in owned {
                let mut served = self.served();
                if let Some(shard) = self.shards.get_mut(&range) {
                    shard.tables.give_up(worker, life, &mut served);
                }
                self.carry_on(range, served);
            }
        }
    }
}
