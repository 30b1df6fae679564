//! A process's reports about the ports of hosts while a group's plans follow them. They have the bytes that its
//! connections sent, and for how long these were busy, as the kernel counts it. A call costs a comparison, a report a
//! system call for each connection.

use super::{plans::Planned, settings::Settings};
use crate::{
    clock::Moment,
    core::{
        collective::Collective,
        plan::LINKED_BYTES,
        prepare::{Call, Sizing},
        session::{
            membership::MemberId,
            rebalance::{LinkUse, PortReport},
        },
    },
    sys::socket::TcpSent,
};
use std::{collections::BTreeMap, time::Duration};

/// How much time and how many large all-reduces are between two reports at the least: one slow call makes none.
pub(super) const PORT_INTERVAL: Duration = Duration::from_millis(500);
const LEAST_CALLS: u32 = 2;
/// Shares make no difference between fewer hosts, and are planned for no more workers.
const LEAST_HOSTS: u32 = 3;
const MOST_WORKERS: u32 = 256;

/// What a process has said of its connections for a group.
#[derive(Debug, Default)]
pub(super) struct PortReports {
    /// How many large all-reduces have ended since the last report.
    calls: u32,
    /// The last of them.
    pub(super) call: Option<Call>,
    /// What plans take the ports of hosts for, if they have followed them.
    pub(super) followed: Option<String>,
    /// When the last report was made, and what connections had sent then; none yet if nothing was looked at.
    last: Option<(Moment, BTreeMap<MemberId, TcpSent>)>,
}

impl PortReports {
    /// For a worker of a group in which they make a difference, if the job wants them.
    pub(super) fn of(settings: &Settings) -> Option<Self> {
        let is_wanted = settings.parameters.measuring.while_running
            && settings.serves.is_none()
            && !settings.sums.is_of_shards
            && !settings.is_reducer(settings.me);
        let differs = Sizing::distinct(&settings.hosts) >= LEAST_HOSTS && settings.workers() <= MOST_WORKERS;
        (is_wanted && differs).then(Self::default)
    }

    /// A call has ended. Returns whether it counts.
    pub(super) fn count(&mut self, planned: &Planned) -> bool {
        let Call { collective, count, dtype, .. } = planned.call;
        let counts = collective == Collective::AllReduce && (count * dtype.bytes()) as u64 >= LINKED_BYTES;
        if counts {
            self.calls = self.calls.saturating_add(1);
            self.call = Some(planned.call);
        }
        counts
    }

    /// What connections have carried since the last report, if there were enough calls; `sent` is what they have sent in all.
    pub(super) fn report(
        &mut self,
        group: u32,
        now: Moment,
        sent: impl Iterator<Item = (MemberId, TcpSent)>,
    ) -> Option<PortReport> {
        if self.last.is_some() && self.calls < LEAST_CALLS {
            return None;
        }
        self.calls = 0;
        let sent: BTreeMap<MemberId, TcpSent> = sent.collect();
        let (then, before) = self.last.replace((now, sent.clone()))?;
        let link = |(peer, sent): (MemberId, TcpSent)| {
            let before = before.get(&peer).copied().unwrap_or_default();
            // A connection that was made anew has sent less than the one before it.
            let bytes = sent.acknowledged.checked_sub(before.acknowledged)?;
            let busy = sent.busy.saturating_sub(before.busy);
            (bytes > 0).then_some(LinkUse { peer, bytes, microseconds: micros(busy) })
        };
        let links = sent.into_iter().filter_map(link).collect();
        Some(PortReport { group, microseconds: micros(now.since(then)), links })
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment::default() + Duration::from_millis(milliseconds)
    }

    fn sent(numbers: &[(u64, u64)]) -> impl Iterator<Item = (MemberId, TcpSent)> {
        let sent = |(peer, (acknowledged, busy)): (u32, &(u64, u64))| {
            (MemberId::new(peer), TcpSent { acknowledged: *acknowledged, busy: Duration::from_micros(*busy) })
        };
        (0..).zip(numbers).map(sent).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn reports_say_what_was_sent_since_the_last_one() {
        let mut reports = PortReports::default();
        assert_eq!(
            reports.report(7, at(500), sent(&[(100, 10), (50, 5)])),
            None,
            "nothing is known of before"
        );
        assert_eq!(reports.report(7, at(1000), sent(&[(900, 90), (50, 5)])), None, "no call has ended");
        reports.calls = LEAST_CALLS;
        let links = vec![LinkUse { peer: MemberId::new(0), bytes: 900, microseconds: 90 }];
        let carried = PortReport { group: 7, microseconds: 1_000_000, links };
        assert_eq!(reports.report(7, at(1500), sent(&[(1000, 100), (50, 5)])), Some(carried));
        reports.calls = LEAST_CALLS;
        let made_anew = reports.report(7, at(2000), sent(&[(10, 1), (51, 6), (5, 2)])).unwrap();
        assert_eq!(made_anew.links.iter().map(|link| link.bytes).collect::<Vec<_>>(), [1, 5]);
    }
}
