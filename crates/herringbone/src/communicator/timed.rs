//! How the clocks of a job's members stand, for its timeline.

use crate::{
    fabric::Job,
    status::ask_clock,
    timeline::{ClockMeasurement, MeasureClocks, TimelineMember},
};
use std::time::Duration;

/// How many round trips a measurement makes; the shortest counts. NTP (RFC 5905, section 10) takes the best of 8, too.
const ROUND_TRIPS: usize = 8;
/// How long one member may take: one that is stopped takes all of it, also at the end of a timeline.
const LONGEST: Duration = Duration::from_millis(500);

/// Measures the clocks of all other members, if this is rank 0 and others are other processes.
pub(super) fn measure(job: &Job) -> Option<MeasureClocks> {
    let workers = (0..).zip(job.roster.workers());
    let workers = workers.map(|(rank, worker)| (TimelineMember::rank(rank, worker.id), worker));
    let reducers = (0..).zip(job.roster.reducers());
    let reducers = reducers.map(|(number, reducer)| (TimelineMember::reducer(number), reducer));
    let others =
        workers.chain(reducers).filter(|(_, member)| member.id != job.me && !member.address.is_empty());
    let others: Vec<(u32, String)> =
        others.map(|(member, of_roster)| (member.identity, of_roster.address.clone())).collect();
    if job.rank != 0 || others.is_empty() {
        return None;
    }
    let (job, token) = (job.id, String::from_utf8(job.token.clone()).ok()?);
    let token = Some(token).filter(|token| !token.is_empty());
    Some(Box::new(move |goes_on| {
        let measured = |(member, address): &(u32, String)| {
            // One that does not answer has left, or will be asked again.
            let clocks = ask_clock(address, token.as_deref(), Some(job), ROUND_TRIPS, LONGEST);
            let best = clocks.ok()?.best()?;
            let (round_trip, there) = (best.round_trip(), best.clock.monotonic);
            Some(ClockMeasurement { member: *member, here: best.sent + round_trip / 2, there, round_trip })
        };
        others.iter().take_while(|_| goes_on()).filter_map(measured).collect()
    }))
}
