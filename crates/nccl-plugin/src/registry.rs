//! Comms: numbers that stand for ends of connections as long as these are open.
//!
//! A number is given once, so a closed comm differs from an open one, and from one that never existed.

use crate::{
    accepting::StreamListener,
    connecting::StreamDial,
    failure::PluginFailure,
    pointers::OpaqueNumber,
    receiving::ReceiveSide,
    sending::SendSide,
    slots::{SLOTS, SlotRequest},
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// The comms of one kind.
#[derive(Debug)]
pub(crate) struct Comms<T> {
    /// What one is called.
    noun: &'static str,
    open: RwLock<BTreeMap<u64, Arc<Mutex<T>>>>,
}

/// What `listen` has made.
pub(crate) static LISTENERS: Comms<StreamListener> = Comms::new("listenComm");
/// What `connect` is making.
pub(crate) static DIALS: Comms<StreamDial> = Comms::new("connection that is being made");
/// What `connect` has made.
pub(crate) static SENDERS: Comms<SendSide> = Comms::new("sendComm");
/// What `accept` has made.
pub(crate) static RECEIVERS: Comms<ReceiveSide> = Comms::new("recvComm");

/// The next number of a comm, of whatever kind.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// From which bit on a request's number has its comm's: below are the end, the slot and its generation.
const COMM_SHIFT: u32 = 24;
const GENERATION_SHIFT: u32 = 8;
const SLOT_SHIFT: u32 = 1;

impl<T> Comms<T> {
    const fn new(noun: &'static str) -> Self {
        Self { noun, open: RwLock::new(BTreeMap::new()) }
    }

    /// A new comm's number.
    pub(crate) fn add(&self, comm: T) -> u64 {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let comm = Arc::new(Mutex::new(comm));
        self.open.write().unwrap_or_else(PoisonError::into_inner).insert(number, comm);
        number
    }

    /// Calls `call` with a comm.
    ///
    /// # Errors
    /// If none with this number is open, and those of `call`.
    pub(crate) fn with<R>(
        &self,
        number: u64,
        call: impl FnOnce(&mut T) -> Result<R, PluginFailure>,
    ) -> Result<R, PluginFailure> {
        let found = self.open.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned();
        let comm = found.ok_or_else(|| self.unknown(number))?;
        let mut comm = comm.lock().unwrap_or_else(PoisonError::into_inner);
        call(&mut comm)
    }

    /// Takes a comm out.
    ///
    /// # Errors
    /// If none with this number is open, or another thread uses it.
    pub(crate) fn remove(&self, number: u64) -> Result<T, PluginFailure> {
        let found = self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
        let comm = Arc::try_unwrap(found.ok_or_else(|| self.unknown(number))?);
        let in_use =
            |_| PluginFailure::internal(format!("NCCL closes a {} that another thread uses", self.noun));
        Ok(comm.map_err(in_use)?.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn unknown(&self, number: u64) -> PluginFailure {
        PluginFailure::argument(format!("{number} is no {} that is open", self.noun))
    }
}

/// A request as NCCL keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestNumber {
    /// The comm's.
    pub(crate) comm: u64,
    pub(crate) is_receive: bool,
    pub(crate) request: SlotRequest,
}

impl RequestNumber {
    /// As NCCL keeps it.
    pub(crate) fn shown(self) -> OpaqueNumber {
        let Self { comm, is_receive, request } = self;
        let generation = u64::from(request.generation) << GENERATION_SHIFT;
        let slot = (request.slot as u64) << SLOT_SHIFT;
        OpaqueNumber::new(comm << COMM_SHIFT | generation | slot | u64::from(is_receive))
    }

    /// From what NCCL keeps, which may be anything.
    pub(crate) fn read(number: OpaqueNumber) -> Self {
        let number = number.number();
        let slot = (number >> SLOT_SHIFT) as usize % (1 << (GENERATION_SHIFT - SLOT_SHIFT));
        let request = SlotRequest { slot, generation: (number >> GENERATION_SHIFT) as u16 };
        Self { comm: number >> COMM_SHIFT, is_receive: number & 1 == 1, request }
    }
}

const _: () = assert!(SLOTS <= 1 << (GENERATION_SHIFT - SLOT_SHIFT), "a slot fits into its bits");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_were_shown() {
        for (comm, slot, generation, is_receive) in [(1, 0, 0, false), (1 << 39, 31, u16::MAX, true)] {
            let number = RequestNumber { comm, is_receive, request: SlotRequest { slot, generation } };
            assert_eq!(RequestNumber::read(number.shown()), number);
            assert_ne!(number.shown(), OpaqueNumber::NONE);
        }
    }

    #[test]
    fn a_comm_that_is_closed_is_none() {
        let comms: Comms<u8> = Comms::new("comm");
        let (one, two) = (comms.add(1), comms.add(2));
        assert_ne!(one, two);
        assert_eq!(comms.with(one, |comm| Ok(*comm)), Ok(1));
        assert_eq!(comms.remove(one), Ok(1));
        let text = format!("{:?}", comms.with(one, |_| Ok(())).unwrap_err());
        assert!(text.contains(&format!("{one} is no comm that is open")), "{text}");
        assert!(comms.remove(one).is_err() && comms.remove(0).is_err());
        let nested = comms.with(two, |_| comms.remove(two));
        assert!(format!("{nested:?}").contains("another thread uses"), "{nested:?}");
    }
}
