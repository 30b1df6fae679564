//! The messages of one group.

use super::post::{Channel, HeldIssue, IncomingRecord, Posted, broadcast};
use crate::{
    Error, ErrorKind,
    completion::Completion,
    core::{
        group::Rank,
        session::mailbox::{Asked, CARRIED_BYTES, Envelope, Mailbox, Match, Record, WAITING_MOST, is_length},
        wire::Kind,
    },
    engine::{
        groups::Groups,
        outbox::{Deferred, Outbox},
        refused::Refused,
        runtime::Runtime,
    },
    execute::issue::Issue,
    sys::region::Region,
    transport::Broken,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

/// What came with a message's announcement.
#[derive(Debug)]
pub(super) enum AnnouncedPayload {
    /// Nothing: it is long.
    None,
    Carried(Vec<u8>),
    /// This rank sends to itself.
    Own(Region),
}

/// Records to one rank. Few are operations at a time: a rank may have a thousand more to tell.
#[derive(Debug, Default)]
struct Outgoing {
    answers: VecDeque<Region>,
    /// By the numbers of the messages.
    announcements: VecDeque<(u64, Region)>,
    /// The numbers of those that have been issued and not answered.
    announced: BTreeSet<u64>,
    under_way: Vec<Arc<Completion>>,
}

/// How many records to one rank are operations at a time.
const RECORDS_UNDER_WAY: usize = 16;

impl Outgoing {
    /// The next record, if one may go.
    fn next(&mut self) -> Option<Region> {
        self.under_way.retain(|record| !record.is_done());
        if self.under_way.len() >= RECORDS_UNDER_WAY {
            return None;
        }
        let answer = self.answers.pop_front();
        answer.or_else(|| {
            if self.announced.len() >= WAITING_MOST {
                return None;
            }
            let (number, record) = self.announcements.pop_front()?;
            self.announced.insert(number);
            Some(record)
        })
    }
}

/// The messages of one group.
#[derive(Debug)]
pub(super) struct PointToPoint {
    pub(super) group: u32,
    pub(super) me: Rank,
    pub(super) mailbox: Mailbox<Posted, Posted, AnnouncedPayload>,
    pub(super) channels: BTreeMap<Rank, Channel>,
    /// Records that are being taken in, by their sender.
    pub(super) incoming: BTreeMap<Rank, IncomingRecord>,
    /// Ranks of which nothing was read yet. What they have said before is read to its end before any of it is delivered: they
    /// may have taken it back.
    unread: BTreeSet<Rank>,
    /// Receives that wait for that.
    pub(super) postponed: VecDeque<(Option<Rank>, Posted)>,
    /// What is yet to be told, by the rank to which.
    outgoing: BTreeMap<Rank, Outgoing>,
    /// Operations that a fence keeps from being issued, in their order.
    held: VecDeque<HeldIssue>,
    /// The generation of the groups that carry records, when this rank last looked.
    pub(super) generations: BTreeMap<u32, u32>,
    /// Whether nothing more is called in the group.
    pub(super) is_closing: bool,
}

impl PointToPoint {
    pub(super) fn new(group: u32, me: Rank) -> Self {
        Self {
            group,
            me,
            mailbox: Mailbox::default(),
            channels: BTreeMap::new(),
            incoming: BTreeMap::new(),
            unread: BTreeSet::new(),
            postponed: VecDeque::new(),
            outgoing: BTreeMap::new(),
            held: VecDeque::new(),
            generations: BTreeMap::new(),
            is_closing: false,
        }
    }

    pub(super) fn send(&mut self, to: Rank, posted: Posted, runtime: &mut Runtime) {
        let (envelope, region, record) = (posted.envelope, posted.region.clone(), posted.record);
        let number = self.mailbox.send(to, posted);
        runtime.out.observer.message_is(record, to, number);
        if to == self.me {
            self.announced(to, number, envelope, AnnouncedPayload::Own(region), runtime);
            return;
        }
        if !is_carried(&region) {
            self.announce(to, number, &Record::Announced { number, envelope, carried: None }, runtime);
        } else if let Some(access) = region.access() {
            let carried = Some(&access.span().to_vec()[..]);
            self.announce(to, number, &Record::Announced { number, envelope, carried }, runtime);
        }
    }

    pub(super) fn add(&mut self, peer: Rank, channel: Channel) {
        self.channels.insert(peer, channel);
        self.unread.insert(peer);
    }

    pub(super) fn receive(&mut self, from: Option<Rank>, posted: Posted, runtime: &mut Runtime) {
        for peer in self.unread.clone() {
            self.take_in(peer, runtime);
        }
        let waits =
            |from: Option<Rank>| from.map_or(!self.unread.is_empty(), |from| self.unread.contains(&from));
        if waits(from) {
            self.postponed.push_back((from, posted));
            return;
        }
        self.ask(from, posted, runtime);
    }

    /// Nothing more of a rank lies here: what waited for that asks now.
    fn is_read(&mut self, peer: Rank, runtime: &mut Runtime) {
        if !self.unread.remove(&peer) {
            return;
        }
        for (from, posted) in std::mem::take(&mut self.postponed) {
            self.receive(from, posted, runtime);
        }
    }

    fn ask(&mut self, from: Option<Rank>, posted: Posted, runtime: &mut Runtime) {
        let envelope = posted.envelope;
        if let Some(found) = self.mailbox.receive(Asked { from, envelope, receive: posted }) {
            self.deliver(found, runtime);
            return;
        }
        for (peer, channel) in &self.channels {
            if from.is_none_or(|from| from == *peer)
                && let Some(group) = runtime.groups.get(channel.records_from)
            {
                // The other end may need this one to make a link. If it cannot be made, the look for what has waited sees that.
                let _are_up = runtime.links.are_up(group.settings.members(), &mut runtime.out);
            }
        }
    }

    /// Goes on with what concerns one other rank.
    pub(super) fn step(&mut self, peer: Rank, runtime: &mut Runtime) {
        self.see_generations(peer, runtime);
        self.issue_held(runtime);
        self.take_in(peer, runtime);
        self.pump(peer, runtime);
    }

    /// Takes in what a rank has told.
    fn take_in(&mut self, peer: Rank, runtime: &mut Runtime) {
        let Some(channel) = self.channels.get(&peer).copied() else { return };
        loop {
            if let Some(record) = self.incoming.get(&peer) {
                let Some(result) = record.completion.result() else { return };
                let Some(record) = self.incoming.remove(&peer) else { return };
                let bytes = record.bytes.access().map(|access| access.span().to_vec());
                if let (Ok(()), Some(bytes)) = (result, bytes) {
                    self.read_record(peer, &bytes, runtime);
                }
            }
            let Some(length) = next_length(channel.records_from, runtime) else {
                return self.is_read(peer, runtime);
            };
            if !is_length(length) {
                broken(channel, runtime, "a record of an invalid length");
                return;
            }
            let (root, bytes) = (place(peer, self.me), Region::zeroed(length));
            let issue = broadcast(channel.records_from, root, &bytes, Duration::MAX);
            let completion = Arc::<Completion>::default();
            if runtime.issue(None, &issue, completion.clone()).is_err() {
                // A fence is under way, or the group is over: what becomes of it is seen later.
                return;
            }
            self.incoming.insert(peer, IncomingRecord { completion, bytes });
        }
    }

    /// A record has come.
    fn read_record(&mut self, peer: Rank, bytes: &[u8], runtime: &mut Runtime) {
        let Some(channel) = self.channels.get(&peer).copied() else { return };
        match Record::decode(bytes) {
            Ok(Record::Announced { number, envelope, carried }) => {
                let payload =
                    carried.map_or(AnnouncedPayload::None, |bytes| AnnouncedPayload::Carried(bytes.to_vec()));
                self.announced(peer, number, envelope, payload, runtime);
            }
            Ok(Record::Taken { number }) => {
                self.has_answer(peer, number);
                self.taken(peer, number, channel, runtime);
            }
            Ok(Record::Refused { number, wanted }) => {
                self.has_answer(peer, number);
                if let Some(sent) = self.mailbox.answered(peer, number).filter(|sent| !sent.is_over) {
                    let error = self.disagreement(number, self.me, peer, sent.envelope, wanted, runtime);
                    sent.end(Err(error), &mut runtime.out);
                }
            }
            Ok(Record::Withdrawn { number }) => {
                if let Some(wanted) = self.mailbox.withdrawn(peer, number) {
                    self.tell(peer, &Record::Refused { number, wanted }, runtime);
                }
            }
            Err(_) => broken(channel, runtime, "a malformed record"),
        }
    }

    fn announced(
        &mut self,
        from: Rank,
        number: u64,
        envelope: Envelope,
        payload: AnnouncedPayload,
        runtime: &mut Runtime,
    ) {
        match self.mailbox.announced(from, number, envelope, payload) {
            Ok(Some(found)) => self.deliver(found, runtime),
            Ok(None) => {}
            Err(_) => {
                if let Some(channel) = self.channels.get(&from).copied() {
                    broken(channel, runtime, "a message that was announced out of turn");
                }
            }
        }
    }

    /// A message and its receive have met.
    fn deliver(&mut self, found: Match<Posted, AnnouncedPayload>, runtime: &mut Runtime) {
        let Match { from, number, sent, payload, wanted, receive } = found;
        runtime.out.observer.message_is(receive.record, from, number);
        if sent != wanted {
            let error = self.disagreement(number, from, self.me, sent, wanted, runtime);
            receive.end(Err(error.clone()), &mut runtime.out);
            match payload {
                AnnouncedPayload::Own(_) => self.end_own(number, Err(error), &mut runtime.out),
                _ => self.tell(from, &Record::Refused { number, wanted }, runtime),
            }
            return;
        }
        receive.completion.set_source(from);
        match payload {
            AnnouncedPayload::None => {
                let Some(channel) = self.channels.get(&from).copied() else { return };
                let issue = broadcast(channel.from, place(from, self.me), &receive.region, receive.timeout);
                let message = Some(receive.as_ended());
                self.issue(HeldIssue { issue, completion: receive.completion, message }, runtime);
                self.tell(from, &Record::Taken { number }, runtime);
            }
            AnnouncedPayload::Carried(bytes) => {
                if let Some(access) = receive.region.access() {
                    access.span().write(&bytes);
                }
                receive.end(there_is(&[&receive.region], runtime), &mut runtime.out);
                self.tell(from, &Record::Taken { number }, runtime);
            }
            AnnouncedPayload::Own(region) => {
                if let (Some(from), Some(to)) = (region.access(), receive.region.access()) {
                    to.span().copy_from(from.span());
                }
                let result = there_is(&[&region, &receive.region], runtime);
                receive.end(result.clone(), &mut runtime.out);
                self.end_own(number, result, &mut runtime.out);
            }
        }
    }

    /// What this rank has sent to itself has met its receive.
    fn end_own(&mut self, number: u64, result: Result<(), Error>, out: &mut Outbox) {
        if let Some(sent) = self.mailbox.answered(self.me, number) {
            sent.end(result, out);
        }
    }

    /// A rank takes a message of this one.
    fn taken(&mut self, by: Rank, number: u64, channel: Channel, runtime: &mut Runtime) {
        let Some(sent) = self.mailbox.answered(by, number) else {
            if !self.mailbox.has_sent(by, number) {
                broken(channel, runtime, "an answer to a message that was not sent");
            }
            return;
        };
        if is_carried(&sent.region) {
            if !sent.is_over {
                sent.end(Ok(()), &mut runtime.out);
            }
            return;
        }
        let issue = broadcast(channel.to, place(self.me, by), &sent.region, sent.timeout);
        if sent.is_over {
            self.refuse_late(&issue, by, runtime);
        } else {
            let message = Some(sent.as_ended());
            self.issue(HeldIssue { issue, completion: sent.completion, message }, runtime);
        }
    }

    /// A rank takes a long message that this one has given up: the operation that the other has issued fails there, too.
    fn refuse_late(&mut self, issue: &Issue, by: Rank, runtime: &mut Runtime) {
        let Some(group) = runtime.groups.get(issue.group) else { return };
        let waiting_for = group.settings.ranks.get(place(by, self.me) as usize).copied();
        // If the group takes no calls now, its fence fails this one.
        let _refused = runtime.issue_late(issue, waiting_for.into_iter().collect());
    }

    /// Issues an operation whose end is a call's.
    fn issue(&mut self, held: HeldIssue, runtime: &mut Runtime) {
        self.held.push_back(held);
        self.issue_held(runtime);
    }

    fn issue_held(&mut self, runtime: &mut Runtime) {
        let mut frozen: Vec<u32> = Vec::new();
        for held in std::mem::take(&mut self.held) {
            let operation = runtime.out.observer.next();
            let result = match frozen.contains(&held.issue.group) {
                true => Err(Refused::Frozen),
                false => runtime.issue(None, &held.issue, held.completion.clone()),
            };
            match (result, held.message) {
                (Ok(()), Some(message)) => runtime.out.observer.message_carried(message.number, operation),
                (Ok(()), None) => {}
                (Err(Refused::Frozen), _) => {
                    frozen.push(held.issue.group);
                    self.held.push_back(held);
                }
                (Err(Refused::Failed(error) | Refused::Counted(error)), message) => {
                    let result = Err(error);
                    if let Some(message) = message {
                        runtime.out.observer.message_ended(message, &result);
                    }
                    held.completion.finish(result);
                    runtime.out.finished = true;
                }
            }
        }
    }

    /// Tells a rank something about a message that was announced.
    pub(super) fn tell(&mut self, peer: Rank, record: &Record<'_>, runtime: &mut Runtime) {
        let record = Region::own(record.encode()).region().clone();
        self.outgoing.entry(peer).or_default().answers.push_back(record);
        self.pump(peer, runtime);
    }

    fn announce(&mut self, peer: Rank, number: u64, record: &Record<'_>, runtime: &mut Runtime) {
        let record = Region::own(record.encode()).region().clone();
        self.outgoing.entry(peer).or_default().announcements.push_back((number, record));
        self.pump(peer, runtime);
    }

    /// Takes back an announcement. Returns whether the other rank may have heard of it.
    pub(super) fn unannounce(&mut self, peer: Rank, number: u64) -> bool {
        let Some(outgoing) = self.outgoing.get_mut(&peer) else { return true };
        let before = outgoing.announcements.len();
        outgoing.announcements.retain(|(other, _)| *other != number);
        before == outgoing.announcements.len()
    }

    /// How many answers wait to be told.
    pub(super) fn unsent_answers(&self) -> usize {
        self.outgoing.values().map(|outgoing| outgoing.answers.len()).sum()
    }

    fn has_answer(&mut self, peer: Rank, number: u64) {
        if let Some(outgoing) = self.outgoing.get_mut(&peer) {
            outgoing.announced.remove(&number);
        }
    }

    /// Issues records once there is a link: until then what is announced can be taken back. If a record cannot be issued, the
    /// groups between the two have failed, and so do their messages.
    fn pump(&mut self, peer: Rank, runtime: &mut Runtime) {
        let Some(channel) = self.channels.get(&peer).copied() else { return };
        let Some(group) = runtime.groups.get(channel.records_to) else { return };
        let me = runtime.links.me;
        let partners: Vec<_> =
            group.settings.members().iter().copied().filter(|member| *member != me).collect();
        if runtime.links.are_up(&partners, &mut runtime.out) != Ok(true) {
            return;
        }
        while let Some(record) = self.outgoing.get_mut(&peer).and_then(Outgoing::next) {
            let issue = broadcast(channel.records_to, place(self.me, peer), &record, Duration::MAX);
            let completion = Arc::<Completion>::default();
            if let Some(outgoing) = self.outgoing.get_mut(&peer) {
                outgoing.under_way.push(completion.clone());
            }
            self.issue(HeldIssue { issue, completion, message: None }, runtime);
        }
    }

    /// Whether no call waits, here or for an answer of this rank.
    pub(super) fn is_idle(&self) -> bool {
        self.unsent_answers() == 0
            && self.postponed.is_empty()
            && self.mailbox.wanted().next().is_none()
            && self.mailbox.sends().all(|(_, _, sent)| sent.is_over)
    }

    /// The two ranks do not agree about a message: what each has posted.
    fn disagreement(
        &self,
        sequence: u64,
        from: Rank,
        to: Rank,
        sent: Envelope,
        wanted: Envelope,
        runtime: &Runtime,
    ) -> Error {
        let named = |rank| self.in_job(rank, &runtime.groups);
        let calls = vec![
            (vec![named(from)], format!("send of {sent} to rank {}", named(to))),
            (vec![named(to)], format!("recv of {wanted} from rank {}", named(from))),
        ];
        let operation = if from == self.me {
            self.named_send(to, &sent, &runtime.groups)
        } else {
            self.named_receive(Some(from), &wanted, &runtime.groups)
        };
        Error::new(ErrorKind::Mismatch { sequence, calls }).about(runtime.links.rank, operation)
    }

    /// A rank of the group as people call it.
    pub(super) fn in_job(&self, rank: Rank, groups: &Groups) -> Rank {
        let ranks = groups.get(self.group).map(|group| &group.settings.ranks);
        ranks.and_then(|ranks| ranks.get(rank as usize).copied()).unwrap_or(rank)
    }

    pub(super) fn named_send(&self, to: Rank, sent: &Envelope, groups: &Groups) -> String {
        format!("send of {sent} to rank {}", self.in_job(to, groups))
    }

    pub(super) fn named_receive(&self, from: Option<Rank>, wanted: &Envelope, groups: &Groups) -> String {
        match from {
            Some(from) => format!("recv of {wanted} from rank {}", self.in_job(from, groups)),
            None => format!("recv of {wanted} from any rank"),
        }
    }
}

/// Whether a message goes with its announcement. One for which there is no memory fails where a long one would be moved.
fn is_carried(sent: &Region) -> bool {
    sent.len() <= CARRIED_BYTES && !sent.is_lacking()
}

/// Whether this rank has the memory of a message of which it moves the bytes itself.
fn there_is(regions: &[&Region], runtime: &Runtime) -> Result<(), Error> {
    let lacking = regions.iter().find(|region| region.is_lacking());
    let rank = runtime.links.rank;
    let kind = |bytes| ErrorKind::Memory { rank, bytes, ended_by: None };
    lacking.map_or(Ok(()), |region| Err(Error::new(kind(region.len() as u64)).at(rank)))
}

/// The place of the first of two ranks in the group of the two.
fn place(one: Rank, other: Rank) -> Rank {
    Rank::from(one > other)
}

/// How long the next record is that has come in a group.
pub(super) fn next_length(group: u32, runtime: &Runtime) -> Option<usize> {
    let state = &runtime.groups.get(group)?.state;
    let mut early = runtime.backlog.early.of(group, state.next()).iter();
    let first = early
        .find(|parked| (parked.header.kind, parked.header.generation) == (Kind::Data, state.generation()));
    first.map(|parked| parked.header.length as usize)
}

/// A rank has said what makes no sense: its link is of no use.
fn broken(channel: Channel, runtime: &mut Runtime, problem: &'static str) {
    let Some(group) = runtime.groups.get(channel.records_from) else { return };
    let me = runtime.links.me;
    if let Some(peer) = group.settings.members().iter().copied().find(|member| *member != me) {
        runtime.out.push(Deferred::Broken { endpoint: peer, reason: Broken::Protocol(problem) });
    }
}
