//! Measures the rates of hosts' ports: each host in turn receives from all others at once, then sends to all at once.

use super::{PINGS_OF_FLOW, Peer};
use crate::{
    Communicator, Error, Region, Result,
    config::settings,
    core::topology::{
        MOST_IN_BLOCK, PortArrival, PortFindings, Ports, TURN_REPEATS, mean_rate, measured_ports,
        measuring_blocks, median_rate, steady_rates,
    },
};
use std::{
    collections::VecDeque,
    fmt, thread,
    time::{Duration, Instant},
};

/// How long messages flow in a turn.
const TURN: Duration = Duration::from_millis(200);
/// By how much a turn takes longer with its barrier and what is under way at its end.
const SLACK: Duration = Duration::from_millis(100);
/// Messages of a flow under way at a time: together as much as flows in half a turn, so that threads may be away for long without
/// a pause on the port.
const WINDOW: usize = 8;
/// Bytes of a flow's first messages, and of its largest.
const FIRST_MESSAGE: u64 = 4 << 10;
const LARGEST_MESSAGE: u64 = 512 << 10;
/// A flow's messages are to be so short that this many of them come in a turn.
const MESSAGES: u32 = 16;

/// A measurement of ports that is about to begin. All ranks of the group make one and run it.
///
/// The first rank of each host stands for all of its ranks. In a turn a host receives from all others, or sends to all,
/// so its own port is the limit. The result is the median of short parts of a turn, and of two such turns the larger
/// one. If there are more than 16 hosts, blocks of at most 16 measure at the same time.
pub struct PortMeasurement<'a> {
    comm: &'a Communicator,
    hosts: Vec<u32>,
    blocks: Vec<Vec<u32>>,
}

impl<'a> PortMeasurement<'a> {
    /// A measurement of the ports of all hosts of a group.
    pub fn of(comm: &'a Communicator) -> Self {
        let (fabric, group) = comm.parts();
        let hosts = group.hosts(fabric);
        Self { comm, blocks: measuring_blocks(&hosts), hosts }
    }

    /// The host of each rank.
    pub fn hosts(&self) -> &[u32] {
        &self.hosts
    }

    /// In how many turns it measures: two for each host of the largest block, each of them repeated; none for one host.
    pub fn turns(&self) -> usize {
        2 * TURN_REPEATS * self.most_hosts()
    }

    /// The longest time, if each port carries 10 Mbit/s or more.
    pub fn limit(&self) -> Duration {
        longest(self.turns())
    }

    fn most_hosts(&self) -> usize {
        self.blocks.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Measures. All ranks of the group get the same ports; `None` if all share a host. `done` is called after each
    /// turn.
    ///
    /// # Errors
    /// Errors of messages; see [`ErrorKind`](crate::ErrorKind).
    pub fn run(self, mut done: impl FnMut(usize)) -> Result<Option<Ports>> {
        let me = self.comm.rank();
        let block = self.blocks.iter().find(|block| block.contains(&me)).map_or(&[][..], Vec::as_slice);
        let (mut findings, mut turn) = (PortFindings::default(), 0);
        let places = 0..self.most_hosts();
        for (repeat, place) in
            (0..TURN_REPEATS).flat_map(|repeat| places.clone().map(move |place| (repeat, place)))
        {
            for is_into in [true, false] {
                self.comm.barrier()?;
                let centre = block.get(place).copied();
                let own: &mut u64 =
                    if is_into { &mut findings.into } else { &mut findings.parts[repeat][place] };
                if let Some(centre) = centre {
                    let others: Vec<u32> = block.iter().copied().filter(|rank| *rank != centre).collect();
                    let (one, many) = ([centre], &others[..]);
                    let (senders, receivers) = if is_into { (many, &one[..]) } else { (&one[..], many) };
                    // The centre has a flow with each other one, and these have one with it.
                    let is_receiver = receivers.contains(&me);
                    let flows = TurnFlows { comm: self.comm };
                    let found =
                        if is_receiver { flows.received(senders)? } else { flows.served(receivers)? };
                    // What disturbs a turn makes a port slower, not faster.
                    *own = median_rate(found.rates).max(*own);
                    findings.nanoseconds = findings.nanoseconds.max(found.nanoseconds);
                }
                turn += 1;
                done(turn);
            }
        }
        let mut own = [0; 2 + TURN_REPEATS * MOST_IN_BLOCK];
        own[..2].copy_from_slice(&[findings.into, findings.nanoseconds]);
        own[2..].copy_from_slice(findings.parts.as_flattened());
        let mut all = vec![0u64; own.len() * self.comm.size() as usize];
        self.comm.all_gather(&own, &mut all)?;
        let findings = |row: &[u64]| PortFindings {
            into: row[0],
            nanoseconds: row[1],
            parts: std::array::from_fn(|repeat| {
                std::array::from_fn(|place| row[2 + repeat * MOST_IN_BLOCK + place])
            }),
        };
        let found: Vec<PortFindings> = all.chunks(own.len()).map(findings).collect();
        measured_ports(&self.hosts, &found)
            .map_err(|error| Error::config(settings::TOPOLOGY.name, error).at(me))
    }
}

impl fmt::Debug for PortMeasurement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortMeasurement").field("blocks", &self.blocks).finish_non_exhaustive()
    }
}

/// How long so many turns take at most.
pub(super) fn longest(turns: usize) -> Duration {
    (TURN + SLACK).saturating_mul(u32::try_from(turns).unwrap_or(u32::MAX))
}

/// What a rank has found in a turn.
#[derive(Default)]
pub(super) struct TurnRates {
    rates: Vec<u64>,
    /// That of all counted parts together.
    pub(super) mean: u64,
    nanoseconds: u64,
}

/// The flows of a turn in which this rank takes part.
pub(super) struct TurnFlows<'a> {
    pub(super) comm: &'a Communicator,
}

impl TurnFlows<'_> {
    /// Receives from all of these at once, in a thread for each.
    pub(super) fn received(&self, senders: &[u32]) -> Result<TurnRates> {
        let began = Instant::now();
        let flows = self.in_threads(senders, |peer| receive_flow(&peer, began))?;
        let nanoseconds = flows.iter().map(|(_, nanoseconds)| *nanoseconds).max().unwrap_or(0);
        let arrivals: Vec<PortArrival> = flows.into_iter().flat_map(|(arrivals, _)| arrivals).collect();
        let length = u64::try_from(TURN.as_nanos()).unwrap_or(u64::MAX);
        let (rates, mean) = (steady_rates(&arrivals, length), mean_rate(&arrivals, length));
        Ok(TurnRates { rates, mean, nanoseconds })
    }

    /// Sends to all of these at once what they ask for.
    pub(super) fn served(&self, receivers: &[u32]) -> Result<TurnRates> {
        let sent = Region::zeroed(LARGEST_MESSAGE as usize);
        self.in_threads(receivers, |peer| serve_flow(&peer, &sent))?;
        Ok(TurnRates::default())
    }

    fn in_threads<T: Send>(
        &self,
        ranks: &[u32],
        flow: impl Fn(Peer<'_>) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        thread::scope(|scope| {
            let run = |rank: &u32| {
                let peer = Peer { comm: self.comm, rank: *rank };
                let flow = &flow;
                scope.spawn(move || flow(peer))
            };
            let threads: Vec<_> = ranks.iter().map(run).collect();
            let ended = |thread: thread::ScopedJoinHandle<'_, Result<T>>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            // All threads have ended before the first error is returned.
            threads.into_iter().map(ended).collect::<Vec<_>>().into_iter().collect()
        })
    }
}

/// Asks for message after message until the turn is over. Returns what came when, in nanoseconds after `began`, and how long an empty message
/// takes.
fn receive_flow(peer: &Peer<'_>, began: Instant) -> Result<(Vec<PortArrival>, u64)> {
    let nanoseconds = peer.round_trip(PINGS_OF_FLOW)? / 2;
    let regions: Vec<Region> = (0..WINDOW).map(|_| Region::zeroed(LARGEST_MESSAGE as usize)).collect();
    let (mut posted, mut arrivals) = (VecDeque::new(), Vec::new());
    let (mut total, mut bytes, mut asked) = (0u64, FIRST_MESSAGE, 0usize);
    loop {
        while posted.len() < WINDOW && began.elapsed() < TURN {
            let region = &regions[asked % WINDOW];
            posted.push_back((bytes, peer.comm.submit_recv(peer.rank, peer.message(region, bytes))?));
            peer.send_request(1, bytes)?;
            asked += 1;
        }
        let Some((arrived, pending)) = posted.pop_front() else { break };
        pending.wait()?;
        let at = began.elapsed();
        arrivals.push(PortArrival { at: u64::try_from(at.as_nanos()).unwrap_or(u64::MAX), bytes: arrived });
        total += arrived;
        // What a bucket lets through at first is no speed.
        let speed = total as f64 / at.max(TURN / 16).as_secs_f64();
        let next = (speed * (TURN / MESSAGES).as_secs_f64()) as u64;
        bytes = next.clamp(FIRST_MESSAGE, (2 * bytes).min(LARGEST_MESSAGE));
    }
    peer.send_request(0, 1)?;
    Ok((arrivals, nanoseconds))
}

/// Answers empty messages, and sends what is asked for, until the receiver has measured.
fn serve_flow(peer: &Peer<'_>, sent: &Region) -> Result<()> {
    let mut posted: VecDeque<crate::Pending> = VecDeque::new();
    loop {
        match peer.receive_request()? {
            (0, 0) => peer.send_request(0, 0)?,
            (0, _) => break,
            (_, bytes) => {
                if posted.len() == WINDOW
                    && let Some(pending) = posted.pop_front()
                {
                    pending.wait()?;
                }
                let message = peer.message(sent, bytes.min(LARGEST_MESSAGE));
                posted.push_back(peer.comm.submit_send(peer.rank, message)?);
            }
        }
    }
    posted.into_iter().try_for_each(|pending| pending.wait())
}
