//! Messages that have waited too long, or cannot come any more.

use super::{
    point_to_point::{PointToPoint, next_length},
    post::Posted,
};
use crate::{
    Error, ErrorKind,
    clock::{Moment, resolution},
    core::{
        group::Rank,
        session::{mailbox::Record, membership::MemberId},
    },
    engine::{failure::left_because, fences, groups::Groups, outbox::Outbox, runtime::Runtime},
};
use std::time::Duration;

/// A send or a receive that waits for its other end.
pub(crate) struct WaitingCall {
    pub(crate) name: String,
    pub(crate) issued: Moment,
    /// For whom it waits, by rank in the job.
    pub(crate) ranks: Vec<Rank>,
}

impl PointToPoint {
    /// Ends the calls that have waited too long, and those that can get no message or no answer any more.
    pub(super) fn look(&mut self, runtime: &mut Runtime) {
        let peers: Vec<Rank> = self.channels.keys().copied().collect();
        for peer in &peers {
            self.step(*peer, runtime);
        }
        let silent: Vec<(Rank, Error)> =
            peers.into_iter().filter_map(|peer| Some((peer, self.why_silent(peer, runtime)?))).collect();
        let dead =
            silent.iter().find(|(peer, _)| self.is_dead(*peer, runtime)).map(|(_, error)| error.clone());
        self.end_sends(&silent, runtime);
        self.end_receives(&silent, dead.as_ref(), runtime);
    }

    fn is_dead(&self, peer: Rank, runtime: &Runtime) -> bool {
        let group = self.channels.get(&peer).and_then(|channel| runtime.groups.get(channel.records_from));
        let is_dead = |member: &MemberId| runtime.links.endpoints[*member].dead;
        group.is_some_and(|group| group.settings.members().iter().any(is_dead))
    }

    /// Why nothing more comes from a rank, once all that has come was taken in.
    fn why_silent(&self, peer: Rank, runtime: &Runtime) -> Option<Error> {
        let channel = self.channels.get(&peer)?;
        if self.incoming.contains_key(&peer) || next_length(channel.records_from, runtime).is_some() {
            return None;
        }
        let Some(group) = runtime.groups.get(channel.records_from) else {
            return Some(Error::new(ErrorKind::Closed));
        };
        if let Some(error) = group.failure(&runtime.links) {
            return Some(error);
        }
        let me = runtime.links.me;
        let away = group
            .settings
            .members()
            .iter()
            .copied()
            .find(|member| *member != me && runtime.links.endpoints[*member].is_away())?;
        Some(left_because(away, false, &runtime.links))
    }

    fn end_sends(&mut self, silent: &[(Rank, Error)], runtime: &mut Runtime) {
        let (mut ended, mut late): (Vec<(Rank, u64, Error, bool)>, _) = (Vec::new(), None);
        for (to, number, sent) in self.mailbox.sends() {
            let why = silent.iter().find(|(peer, _)| *peer == to).map(|(_, error)| error);
            let error = match (why, sent.is_late(&runtime.out)) {
                (Some(error), _) => error.clone(),
                (None, true) if !sent.is_over => {
                    late = Some(sent.timeout);
                    self.timeout(sent, vec![to], runtime)
                }
                _ => continue,
            };
            let error = error.about(runtime.links.rank, self.named_send(to, &sent.envelope, &runtime.groups));
            ended.push((to, number, error, why.is_some()));
        }
        self.ask_who_is_there(late, runtime);
        for (to, number, error, for_good) in ended {
            let Some(sent) = self.mailbox.send_mut(to, number) else { continue };
            if !std::mem::replace(&mut sent.is_over, true) {
                sent.end(Err(error), &mut runtime.out);
            }
            if to != self.me && !for_good && self.unannounce(to, number) {
                self.tell(to, &Record::Withdrawn { number }, runtime);
                continue;
            }
            self.mailbox.answered(to, number);
            self.mailbox.withdrawn(to, number);
        }
    }

    /// A receive from any rank fails if one has died, as its message may have been meant, or if all others have left.
    fn end_receives(&mut self, silent: &[(Rank, Error)], dead: Option<&Error>, runtime: &mut Runtime) {
        let why = |from: Option<Rank>| match from {
            Some(from) => silent.iter().find(|(peer, _)| *peer == from).map(|(_, error)| error.clone()),
            None if dead.is_some() => dead.cloned(),
            None if silent.len() == self.channels.len() => silent.last().map(|(_, error)| error.clone()),
            None => None,
        };
        let (out, mut late) = (&runtime.out, None);
        let over = self.mailbox.give_up(|wanted| why(wanted.from).is_some() || wanted.receive.is_late(out));
        for wanted in over {
            let error = why(wanted.from).unwrap_or_else(|| {
                late = Some(wanted.receive.timeout);
                let missing = match wanted.from {
                    Some(from) => vec![from],
                    None => self.channels.keys().copied().collect(),
                };
                self.timeout(&wanted.receive, missing, runtime)
            });
            let name = self.named_receive(wanted.from, &wanted.envelope, &runtime.groups);
            wanted.receive.end(Err(error.about(runtime.links.rank, name)), &mut runtime.out);
        }
        self.ask_who_is_there(late, runtime);
    }

    /// A message has waited for so long, if any has: perhaps the other rank has not made the group.
    fn ask_who_is_there(&self, late: Option<Duration>, runtime: &mut Runtime) {
        if let Some(after) = late {
            fences::ask_who_has_made(runtime, self.group, after);
        }
    }

    fn timeout(&self, posted: &Posted, missing: Vec<Rank>, runtime: &Runtime) -> Error {
        let missing = missing.into_iter().map(|rank| format!("rank {}", self.in_job(rank, &runtime.groups)));
        Error::new(ErrorKind::Timeout {
            rank: runtime.links.rank,
            after: posted.timeout,
            missing: missing.collect(),
        })
    }

    /// If a group that carries records was fenced, some may be lost: what was announced and has no answer fails on both
    /// ranks, and so does what waits for that rank. If the group is over, a rank is lost: then the fence of the messages' group says so.
    pub(super) fn see_generations(&mut self, peer: Rank, runtime: &mut Runtime) {
        let Some(channel) = self.channels.get(&peer) else { return };
        let mut error = None;
        for number in [channel.records_to, channel.records_from] {
            let Some(group) = runtime.groups.get(number) else { continue };
            let now = group.state.generation();
            let before = self.generations.insert(number, now).unwrap_or(0);
            if before < now && !group.state.is_over() {
                let (from, to) = (self.in_job(peer, &runtime.groups), runtime.links.rank);
                let (from, to) = (format!("rank {from}"), format!("rank {to}"));
                error = Some(Error::new(ErrorKind::Corrupt { from, to }));
            }
        }
        let Some(error) = error else { return };
        self.mailbox.forget(peer);
        let lost: Vec<u64> =
            self.mailbox.sends().filter(|(to, _, _)| *to == peer).map(|(_, number, _)| number).collect();
        for number in lost {
            if let Some(sent) = self.mailbox.answered(peer, number).filter(|sent| !sent.is_over) {
                let name = self.named_send(peer, &sent.envelope, &runtime.groups);
                sent.end(Err(error.about(runtime.links.rank, name)), &mut runtime.out);
            }
        }
        for wanted in self.mailbox.give_up(|wanted| wanted.from == Some(peer)) {
            let name = self.named_receive(wanted.from, &wanted.envelope, &runtime.groups);
            wanted.receive.end(Err(error.about(runtime.links.rank, name)), &mut runtime.out);
        }
    }

    /// Ends all calls that wait.
    pub(super) fn fail_all(&mut self, error: &Error, out: &mut Outbox) {
        let wanted = self.mailbox.give_up(|_| true);
        for (_, postponed) in self.postponed.drain(..) {
            postponed.end(Err(error.clone()), out);
        }
        let sends = self.mailbox.sends().filter(|(_, _, sent)| !sent.is_over).map(|(_, _, sent)| sent);
        wanted.iter().map(|wanted| &wanted.receive).chain(sends).for_each(|posted| {
            posted.end(Err(error.clone()), out);
        });
    }

    /// The calls that wait for their other ends.
    pub(super) fn waiting(&self, groups: &Groups) -> Vec<WaitingCall> {
        let in_job = |rank: &Rank| self.in_job(*rank, groups);
        let sends = self.mailbox.sends().filter(|(_, _, sent)| !sent.is_over);
        let sends = sends.map(|(to, _, sent)| WaitingCall {
            name: self.named_send(to, &sent.envelope, groups),
            issued: sent.issued,
            ranks: vec![in_job(&to)],
        });
        let wanted = self.mailbox.wanted().map(|wanted| WaitingCall {
            name: self.named_receive(wanted.from, &wanted.envelope, groups),
            issued: wanted.receive.issued,
            ranks: match &wanted.from {
                Some(from) => vec![in_job(from)],
                None => self.channels.keys().map(in_job).collect(),
            },
        });
        sends.chain(wanted).collect()
    }

    /// The calls that wait, by name.
    pub(super) fn names(&self, groups: &Groups) -> Vec<String> {
        let sends = self.mailbox.sends().filter(|(_, _, sent)| !sent.is_over);
        let sends = sends.map(|(to, _, sent)| self.named_send(to, &sent.envelope, groups));
        let wanted = self.mailbox.wanted();
        let answers = self.unsent_answers();
        let answers = (answers > 0).then(|| format!("{answers} answers to messages"));
        answers
            .into_iter()
            .chain(sends)
            .chain(wanted.map(|wanted| self.named_receive(wanted.from, &wanted.envelope, groups)))
            .collect()
    }
}

impl Posted {
    fn is_late(&self, out: &Outbox) -> bool {
        out.now().since(self.issued).saturating_sub(resolution()) >= self.timeout
    }
}
