//! Measures the rates of links between the ranks of a group, and of their hosts' ports, with messages.
//!
//! ```
//! use herringbone::{core::topology::LinkMatrix, measure::LinkMeasurement};
//!
//! # fn main() -> Result<(), herringbone::Error> {
//! std::thread::scope(|scope| {
//!     for comm in herringbone::local(2)? {
//!         scope.spawn(move || {
//!             let measurement = LinkMeasurement::of(&comm)?;
//!             println!("at most {} s", measurement.limit().as_secs_f64());
//!             let topology = measurement.run(|_round| {})?;
//!             println!("{} GB/s from rank 0 to rank 1", topology.links()[0].bandwidth);
//!             Ok::<_, herringbone::Error>(())
//!         });
//!     }
//!     Ok(())
//! })
//! # }
//! ```

mod ports;
mod sites;

pub use ports::PortMeasurement;
pub use sites::SiteMeasurement;

use crate::{
    Communicator, DType, Error, MessageRequest, Region, Result,
    config::settings,
    core::topology::{
        BatchTimes, LARGEST_MESSAGE, LinkSamples, MESSAGES_IN_FLIGHT, MOST_RANKS, MeasuredLink,
        MeasuringPair, MessageBatch, Topology, measured_topology, measuring_rounds,
    },
};
use std::{
    collections::VecDeque,
    fmt,
    time::{Duration, Instant},
};

/// How long all links together are to be busy with messages, in one round after the other.
const BUSY: Duration = Duration::from_secs(16);
/// How long a batch of one direction of a link takes, where the rounds leave it that much.
const MOST_BUSY: Duration = Duration::from_millis(100);
const LEAST_BUSY: Duration = Duration::from_millis(20);
/// How many times as long a direction takes, with all of its batches: those that find out how much it carries, and those that
/// count.
const BATCHES: u32 = 9;
/// Empty messages there and back.
const PINGS: u32 = 20;
/// The same of a flow to a port.
const PINGS_OF_FLOW: u32 = 5;
const CONTROL: i64 = 1;
const DATA: i64 = 2;

/// A measurement that is about to begin. All ranks of the group make one and run it.
///
/// Hosts are measured in pairs, each by its first rank, and then the ranks of each host in pairs. No two pairs of a
/// round share a rank. Links that share a cable, a switch or a memory are measured together with other pairs of their
/// round.
pub struct LinkMeasurement<'a> {
    comm: &'a Communicator,
    hosts: Vec<u32>,
    rounds: Vec<Vec<MeasuringPair>>,
    /// How long a batch is to take.
    busy: Duration,
}

impl<'a> LinkMeasurement<'a> {
    /// A measurement of the links between all ranks of a group.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for more ranks than a topology of ranks has.
    pub fn of(comm: &'a Communicator) -> Result<Self> {
        if comm.size() as usize > MOST_RANKS {
            let problem = format!("{} ranks; links are measured among {MOST_RANKS} at most", comm.size());
            return Err(Error::config(settings::TOPOLOGY.name, problem).at(comm.rank()));
        }
        let (fabric, group) = comm.parts();
        let hosts = group.hosts(fabric);
        let rounds = measuring_rounds(&hosts);
        let turns = 2 * u32::try_from(rounds.len()).unwrap_or(u32::MAX).max(1);
        let busy = (BUSY / turns / BATCHES).clamp(LEAST_BUSY, MOST_BUSY);
        Ok(Self { comm, hosts, rounds, busy })
    }

    /// In how many rounds it measures.
    pub fn rounds(&self) -> usize {
        self.rounds.len()
    }

    /// The longest time, if each link carries 1 Mbit/s or more.
    pub fn limit(&self) -> Duration {
        let turns = 2 * u32::try_from(self.rounds.len()).unwrap_or(u32::MAX);
        (self.busy * BATCHES).saturating_mul(turns)
    }

    /// Measures. All ranks of the group get the same topology, in which node i is rank i. `done` hears of each round that has
    /// ended.
    ///
    /// # Errors
    /// Errors of messages; see [`ErrorKind`](crate::ErrorKind).
    pub fn run(self, mut done: impl FnMut(usize)) -> Result<Topology> {
        let Self { comm, hosts, rounds, busy } = self;
        let (me, ranks) = (comm.rank(), comm.size() as usize);
        // The links to this rank: nanoseconds and bytes per second, by sender.
        let mut own = vec![0u64; 2 * ranks];
        let mut buffers = None;
        for (at, round) in rounds.iter().enumerate() {
            comm.barrier()?;
            let pair = round.iter().find(|(one, other)| [*one, *other].contains(&me));
            if let Some(&(one, other)) = pair {
                let buffers = buffers.get_or_insert_with(MessageBuffers::new);
                let peer = Peer { comm, rank: if me == one { other } else { one } };
                if me == one {
                    peer.serve(buffers)?;
                }
                let MeasuredLink { nanoseconds, bytes_per_second } = peer.measure(buffers, busy)?;
                own[2 * peer.rank as usize..][..2].copy_from_slice(&[nanoseconds, bytes_per_second]);
                if me != one {
                    peer.serve(buffers)?;
                }
            }
            done(at + 1);
        }
        let mut all = vec![0u64; 2 * ranks * ranks];
        comm.all_gather(&own, &mut all)?;
        let link = |pair: &[u64]| MeasuredLink { nanoseconds: pair[0], bytes_per_second: pair[1] };
        let rows: Vec<MeasuredLink> = all.chunks(2).map(link).collect();
        measured_topology(&hosts, &rows).map_err(|error| Error::config(settings::TOPOLOGY.name, error).at(me))
    }
}

impl fmt::Debug for LinkMeasurement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkMeasurement").field("rounds", &self.rounds).finish_non_exhaustive()
    }
}

/// What messages are sent from, and received into by turns.
struct MessageBuffers {
    sent: Region,
    received: Vec<Region>,
}

impl MessageBuffers {
    fn new() -> Self {
        let region = || Region::zeroed(LARGEST_MESSAGE as usize);
        Self { sent: region(), received: (0..MESSAGES_IN_FLIGHT).map(|_| region()).collect() }
    }
}

/// The other rank of a pair.
struct Peer<'a> {
    comm: &'a Communicator,
    rank: u32,
}

impl Peer<'_> {
    /// Measures the link from the peer: how long an empty message takes, and how much of several batches comes in a second.
    fn measure(&self, buffers: &MessageBuffers, busy: Duration) -> Result<MeasuredLink> {
        let round_trip = self.round_trip(PINGS)?;
        let [busy, limit] = [busy, busy * BATCHES].map(nanoseconds);
        let mut samples = LinkSamples::new(busy, limit, round_trip);
        while let Some(batch) = samples.next() {
            samples.add(self.receive(buffers, batch)?);
        }
        self.send_request(0, 1)?;
        Ok(MeasuredLink { nanoseconds: round_trip / 2, bytes_per_second: samples.bytes_per_second() })
    }

    /// How many nanoseconds an empty message takes there and back: the fastest of so many.
    fn round_trip(&self, times: u32) -> Result<u64> {
        let mut fastest = Duration::MAX;
        for _ in 0..times {
            let began = Instant::now();
            self.send_request(0, 0)?;
            self.receive_request()?;
            fastest = fastest.min(began.elapsed());
        }
        Ok(nanoseconds(fastest))
    }

    /// Asks for a batch and receives it.
    fn receive(&self, buffers: &MessageBuffers, batch: MessageBatch) -> Result<BatchTimes> {
        let began = Instant::now();
        self.send_request(batch.messages, batch.bytes)?;
        let post = |message: u64| {
            let region = &buffers.received[(message % MESSAGES_IN_FLIGHT) as usize];
            self.comm.submit_recv(self.rank, self.message(region, batch.bytes))
        };
        let at_first = 0..MESSAGES_IN_FLIGHT.min(batch.messages);
        let mut posted = at_first.map(post).collect::<Result<VecDeque<_>>>()?;
        let elapsed = || nanoseconds(began.elapsed());
        let [mut first, mut half] = [0; 2];
        for message in 1..=batch.messages {
            if let Some(pending) = posted.pop_front() {
                pending.wait()?;
            }
            if message == 1 {
                first = elapsed();
            }
            if message == batch.messages / 2 {
                half = elapsed();
            }
            if message + MESSAGES_IN_FLIGHT <= batch.messages {
                posted.push_back(post(message + MESSAGES_IN_FLIGHT - 1)?);
            }
        }
        Ok(BatchTimes { first, half, all: elapsed() })
    }

    /// Does what the peer asks for: answers empty messages and sends batches, until it has measured.
    fn serve(&self, buffers: &MessageBuffers) -> Result<()> {
        loop {
            match self.receive_request()? {
                (0, 0) => self.send_request(0, 0)?,
                (0, _) => return Ok(()),
                (messages, bytes) => {
                    let mut posted = VecDeque::new();
                    for _ in 0..messages {
                        if posted.len() as u64 == MESSAGES_IN_FLIGHT
                            && let Some(pending) = posted.pop_front()
                        {
                            crate::Pending::wait(&pending)?;
                        }
                        let message = self.message(&buffers.sent, bytes.min(LARGEST_MESSAGE));
                        posted.push_back(self.comm.submit_send(self.rank, message)?);
                    }
                    posted.into_iter().try_for_each(|pending| pending.wait())?;
                }
            }
        }
    }

    fn message(&self, region: &Region, bytes: u64) -> MessageRequest {
        MessageRequest::new(DType::U8, bytes as usize, region.part(0..bytes as usize)).tag(DATA)
    }

    fn send_request(&self, messages: u64, bytes: u64) -> Result<()> {
        self.comm.send(&[messages, bytes], self.rank, CONTROL)
    }

    fn receive_request(&self) -> Result<(u64, u64)> {
        let mut heard = [0u64; 2];
        self.comm.recv(&mut heard, self.rank, CONTROL)?;
        Ok((heard[0], heard[1]))
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
