//! The steps that all calls have: re-forming the group, and the ranks' messages after that.

use super::{
    Rabit,
    models::{kept, owned},
    pool::KeptBytes,
};
use crate::{
    Error, ErrorKind, MessageRequest, Pending, Request, Result,
    core::{
        collective::Collective,
        element::DType,
        group::Rank,
        replay::{CheckpointOffer, Kept, ReplayPart, ReplayPayload, ReplayStanding, ReplayStep},
    },
    sys::region::Region,
};
use std::time::Duration;

/// How long a rank waits for others to meet once more, if it knows that all have come to their end: if they do not come, they have left.
const AT_THE_END: Duration = Duration::from_secs(30);

/// What messages are for, so that they do not take each other's place.
const KEPT: i64 = 1;
const LAZY_LENGTH: i64 = 2;
const LAZY: i64 = 3;

/// A message on its way to this rank.
enum Arriving {
    Known(Region, Pending),
    /// Its sender says first how long it is.
    Lazy(Rank, Region, Pending),
}

impl Rabit {
    /// Takes the steps that come before the call's own, and returns that one.
    pub(super) fn next_step(&mut self, operation: &str) -> Result<ReplayStep<KeptBytes>> {
        loop {
            let step = self.member.step().map_err(|problem| self.stopped(problem, operation))?;
            let done = match step {
                ReplayStep::Regroup => self.regroup(),
                ReplayStep::Exchange => self.exchange(operation),
                ReplayStep::Transfer(parts) => self.transfer(parts).map(|arrived| self.member.moved(arrived)),
                ReplayStep::Offer(offer) => self.offer(offer, operation),
                ReplayStep::Meet => self.meet().map(|()| {
                    self.member.met();
                    if self.member.may_leave() {
                        self.say_complete();
                    }
                }),
                step => return Ok(step),
            };
            done.or_else(|error| self.lose(error))?;
        }
    }

    /// A step has failed. If that is because a rank is lost, the call goes on once it is there again.
    pub(super) fn lose(&mut self, error: Error) -> Result<()> {
        match error.kind() {
            ErrorKind::PeerLost { .. } | ErrorKind::LinkLost { .. } => {
                self.member.lost();
                let who = format!("rank {}", self.rank());
                crate::log::info(
                    &who,
                    format_args!("it waits until a lost rank is started again: {}", error.kind().seen()),
                );
                Ok(())
            }
            ErrorKind::Mismatch { sequence, calls } => {
                let named = |(ranks, call): &(Vec<Rank>, String)| (ranks.clone(), as_program_calls_it(call));
                let (sequence, calls) = (*sequence, calls.iter().map(named).collect());
                let own = error.operation().map(as_program_calls_it).unwrap_or_default();
                Err(Error::new(ErrorKind::Mismatch { sequence, calls }).about(self.rank(), &own))
            }
            _ => Err(error),
        }
    }

    /// Forms the group anew, of all ranks. It may take several tries: processes may end meanwhile.
    fn regroup(&mut self) -> Result<()> {
        let patience = if self.member.may_leave() { AT_THE_END } else { self.options.recovery_timeout };
        match self.waiting.form_again(self.rank(), patience, |left| self.comm.replace(Some(left))) {
            Ok(comm) => {
                self.comm = comm;
                if let Some(on_forming) = self.on_forming {
                    on_forming(&self.comm);
                }
                self.member.formed();
                Ok(())
            }
            Err(_) if self.member.may_leave() => {
                self.member.leave();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn exchange(&mut self, operation: &str) -> Result<()> {
        let standing = self.member.standing().to_bytes().ok_or_else(|| {
            let problem =
                "it keeps the results of more calls than others can be told of: call checkpoint() more often";
            Error::unsupported(problem).about(self.rank(), operation)
        })?;
        let lengths = self.gather((standing.len() as u64).to_le_bytes().to_vec())?;
        let lengths: Vec<u64> =
            lengths.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0) as usize;
        self.check_memory(longest.saturating_mul(lengths.len()))?;
        let mut mine = standing;
        mine.resize(longest, 0);
        let all = self.gather(mine)?;
        let standings = (0..).zip(all.chunks(longest)).zip(&lengths).map(|((rank, bytes), length)| {
            ReplayStanding::from_bytes(&bytes[..*length as usize]).ok_or_else(|| {
                let problem = "its standing cannot be read".to_owned();
                let from = format!("rank {rank}");
                Error::new(ErrorKind::Protocol { from, problem }).about(self.rank(), operation)
            })
        });
        let standings = standings.collect::<Result<Vec<_>>>()?;
        self.member.decided(&standings).map_err(|problem| self.stopped(problem, operation))
    }

    /// What all ranks give, as many bytes each, by rank.
    fn gather(&self, mine: Vec<u8>) -> Result<Vec<u8>> {
        let (count, all) = (mine.len(), Region::zeroed(mine.len() * self.size() as usize));
        let request = Request::new(Collective::AllGather, DType::U8, count, owned(mine), all.clone());
        self.waiting.execute(&self.comm, request)?;
        let access = all.access().ok_or_else(|| Error::new(ErrorKind::Closed))?;
        Ok(access.span().to_vec())
    }

    fn meet(&self) -> Result<()> {
        let nothing = Region::zeroed(0);
        let request = Request::new(Collective::Barrier, DType::U8, 0, nothing.clone(), nothing);
        self.waiting.execute(&self.comm, request)
    }

    fn offer(&mut self, offer: CheckpointOffer, operation: &str) -> Result<()> {
        let all = self.gather(offer.to_bytes().to_vec())?;
        let offers: Vec<_> = all.as_chunks().0.iter().map(CheckpointOffer::from_bytes).collect();
        self.member.offered(&offers).map_err(|problem| self.stopped(problem, operation))
    }

    /// Sends and receives all parts at once.
    fn transfer(&self, parts: Vec<ReplayPart<KeptBytes>>) -> Result<Vec<Kept<KeptBytes>>> {
        let (mut sent, mut arriving) = (Vec::new(), Vec::new());
        for part in parts {
            match part {
                ReplayPart::Send { to, payload: ReplayPayload::Kept(kept) } => {
                    sent.push(self.send(to, kept.data.region().clone(), KEPT)?);
                }
                ReplayPart::Send { to, payload: ReplayPayload::Lazy } => {
                    let bytes = self.lazy_bytes()?;
                    let length = (bytes.len() as u64).to_le_bytes().to_vec();
                    sent.push(self.send(to, owned(length), LAZY_LENGTH)?);
                    sent.push(self.send(to, owned(bytes), LAZY)?);
                }
                ReplayPart::Receive { from, bytes } => arriving.push(self.receive(from, bytes)?),
            }
        }
        let arrived =
            arriving.into_iter().map(|message| self.arrived(message)).collect::<Result<Vec<_>>>()?;
        sent.iter().try_for_each(Pending::wait)?;
        Ok(arrived)
    }

    fn send(&self, to: Rank, region: Region, tag: i64) -> Result<Pending> {
        self.comm.submit_send(to, MessageRequest::new(DType::U8, region.len(), region).tag(tag))
    }

    fn receive(&self, from: Rank, bytes: Option<u64>) -> Result<Arriving> {
        let (length, tag) = match bytes {
            Some(bytes) => (usize::try_from(bytes).unwrap_or(usize::MAX), KEPT),
            None => (size_of::<u64>(), LAZY_LENGTH),
        };
        let (region, pending) = self.receive_into(from, length, tag)?;
        Ok(match bytes {
            Some(_) => Arriving::Known(region, pending),
            None => Arriving::Lazy(from, region, pending),
        })
    }

    fn receive_into(&self, from: Rank, length: usize, tag: i64) -> Result<(Region, Pending)> {
        self.check_memory(length)?;
        let region = Region::zeroed(length);
        let message = MessageRequest::new(DType::U8, length, region.clone()).tag(tag);
        Ok((region, self.comm.submit_recv(from, message)?))
    }

    fn arrived(&self, message: Arriving) -> Result<Kept<KeptBytes>> {
        match message {
            Arriving::Known(region, pending) => {
                pending.wait()?;
                Ok(kept(region.into()))
            }
            Arriving::Lazy(from, length, pending) => {
                pending.wait()?;
                let mut bytes = [0; size_of::<u64>()];
                length.access().ok_or_else(|| Error::new(ErrorKind::Closed))?.span().read(&mut bytes);
                let length = usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX);
                let (region, pending) = self.receive_into(from, length, LAZY)?;
                pending.wait()?;
                Ok(kept(region.into()))
            }
        }
    }

    /// That there is so much memory. Others say how much, so the program goes on without it.
    pub(super) fn check_memory(&self, bytes: usize) -> Result<()> {
        let lacks = Vec::<u8>::new().try_reserve_exact(bytes).is_err();
        match lacks {
            false => Ok(()),
            true => {
                Err(Error::new(ErrorKind::Memory { rank: self.rank(), bytes: bytes as u64, ended_by: None }))
            }
        }
    }
}

/// What ranks call where the program has called something else, as errors tell the program.
fn as_program_calls_it(call: &str) -> String {
    let offer = format!("all_gather of {} u8", CheckpointOffer::BYTES);
    if let Some(rest) = call.strip_prefix(&offer) {
        return format!("checkpoint{rest}");
    }
    call.strip_prefix("barrier").map_or_else(|| call.to_owned(), |rest| format!("finalize{rest}"))
}
