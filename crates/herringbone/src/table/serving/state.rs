//! The state of a server's thread.

use crate::{
    core::{
        session::status::{RangeStatus, TableServerStatus},
        table::{
            KnownKeys, TableError, TableRequest,
            replication::{SentImage, ServerLife, TableNode},
        },
    },
    table::{
        kept_push::KeptPayload,
        link::MessageLink,
        memory::{MemoryShare, TableMemory},
        optimizers::OwnOptimizers,
        options::TableGroup,
        shared::ServiceShared,
        tables::walk::{ImageCursor, TableLoader},
        tables::{Reply, TableCaller, Tables},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, mpsc::Receiver},
    time::{Duration, Instant},
};

/// What the thread has.
pub(in crate::table) struct Serving {
    pub(super) shared: Arc<ServiceShared>,
    pub(super) patience: Option<Duration>,
    pub(super) poller: OwnedFd,
    pub(super) memory: TableMemory,
    pub(super) optimizers: OwnOptimizers,
    pub(super) shards: BTreeMap<u32, Shard>,
    pub(super) connections: BTreeMap<u64, ServedConnection>,
    pub(super) next: u64,
    /// Workers that have connections: rank, and life of the process.
    pub(super) present: BTreeMap<(u32, u64), usize>,
    pub(super) away: Vec<Away>,
    /// The other servers, if there are any that have copies.
    pub(super) group: Option<ServingGroup>,
    /// Connections that have something in line.
    pub(super) to_write: BTreeSet<u64>,
    pub(super) disk: Disk,
}

/// A range, of which this server is the owner or has a copy.
pub(super) struct Shard {
    pub(super) tables: Tables,
    /// Answers that wait for copies, by the number of operations that these must have.
    pub(super) held: VecDeque<HeldAnswer>,
    /// A table whose image comes.
    pub(super) loader: Option<TableLoader>,
}

pub(super) struct HeldAnswer {
    pub(super) sequence: u64,
    pub(super) connection: u64,
    pub(super) number: u64,
    pub(super) payload: Vec<u8>,
}

pub(super) struct ServedConnection {
    pub(super) link: MessageLink,
    pub(super) process: ConnectedProcess,
    /// What it is to be told, of a range each, once what is in line has left.
    pub(super) replies: VecDeque<(u32, Reply)>,
    /// The lists of keys that its worker has sent, and what they take up of the memory.
    pub(super) keys: KnownKeys,
    pub(super) keys_share: MemoryShare,
    /// The ranges whose requests go elsewhere.
    pub(super) bounced: BTreeSet<u32>,
    /// Whether the poller says when the socket takes something.
    pub(super) awaits_room: bool,
}

impl ServedConnection {
    pub(super) fn new(link: MessageLink, process: ConnectedProcess, memory: &TableMemory) -> Self {
        Self {
            link,
            process,
            replies: VecDeque::new(),
            keys: KnownKeys::default(),
            keys_share: MemoryShare::new(memory),
            bounced: BTreeSet::new(),
            awaits_room: false,
        }
    }

    /// Reads a request. The lists of keys that it brings are known from then on, whatever becomes of it.
    pub(super) fn decode(&mut self, payload: Vec<u8>) -> Result<(TableRequest, KeptPayload), TableError> {
        let before = self.keys.bytes();
        let decoded = KeptPayload::decode(payload, &mut self.keys);
        if self.keys.bytes() != before {
            self.keys_share.set(self.keys.bytes() as u64);
        }
        decoded
    }
}

/// Who is at the other end.
#[derive(Clone, Copy)]
pub(super) enum ConnectedProcess {
    Worker(TableCaller),
    Server(ServerLife),
}

/// A worker that has no connection any more, and has not said goodbye.
pub(super) struct Away {
    pub(super) since: Instant,
    pub(super) worker: u32,
    pub(super) life: u64,
}

impl Shard {
    pub(super) fn new(range: u32, memory: &TableMemory, optimizers: &OwnOptimizers, is_copy: bool) -> Self {
        let tables = Tables::new(range, memory.clone(), optimizers.clone(), is_copy);
        Self { tables, held: VecDeque::new(), loader: None }
    }
}

/// The other servers.
pub(super) struct ServingGroup {
    pub(super) node: TableNode,
    pub(super) servers: Vec<String>,
    /// The connection with each server.
    pub(super) connections: BTreeMap<u32, u64>,
    pub(super) images: Vec<ImageJob>,
    /// Whether what the node says is being done.
    pub(super) is_carrying_out: bool,
    /// Processes that came to a place that another one has.
    pub(super) sent_away: BTreeSet<ServerLife>,
    pub(super) began: Instant,
}

/// An image that is being sent.
pub(super) struct ImageJob {
    pub(super) image: SentImage,
    pub(super) table: Option<u32>,
    pub(super) cursor: Option<ImageCursor>,
}

impl ServingGroup {
    pub(super) fn new(group: &TableGroup, incarnation: u64) -> Self {
        let own = ServerLife { server: group.place, life: incarnation };
        Self {
            node: TableNode::new(own, group.servers.len() as u32, group.replicas),
            servers: group.servers.clone(),
            connections: BTreeMap::new(),
            images: Vec::new(),
            is_carrying_out: false,
            sent_away: BTreeSet::new(),
            began: Instant::now(),
        }
    }

    /// Who has which range, as far as is known here.
    pub(super) fn status(&self) -> TableServerStatus {
        let tenures = self.node.settled().map(|settled| &*settled.tenures).unwrap_or_default();
        let ranges = (0..).zip(tenures).map(|(range, tenure)| {
            let progress = self.node.progress(range).filter(|_| self.node.executes(range));
            RangeStatus {
                range,
                owner: tenure.owner,
                copies: tenure.copies.iter().map(|copy| copy.server).collect(),
                unconfirmed: progress.map_or(0, |progress| progress.executed - progress.settled),
            }
        });
        TableServerStatus {
            place: self.node.place(),
            servers: self.servers.clone(),
            replicas: self.node.replicas(),
            ranges: ranges.collect(),
            ..TableServerStatus::default()
        }
    }

    pub(super) fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }
}

/// Where snapshots are, and what is read from there.
pub(super) struct Disk {
    pub(super) data: Option<PathBuf>,
    pub(super) restores: Vec<RestoreJob>,
    /// How many files of snapshots this process has begun to write.
    pub(super) begun: u64,
}

impl Disk {
    pub(super) fn new(data: Option<PathBuf>) -> Self {
        Self { data, restores: Vec::new(), begun: 0 }
    }
}

/// A table that is being restored.
pub(super) struct RestoreJob {
    pub(super) range: u32,
    pub(super) connection: u64,
    pub(super) number: u64,
    /// Of the snapshot, once it is known.
    pub(super) id: Option<u64>,
    pub(super) has_begun: bool,
    pub(super) found: Receiver<FoundRecord>,
}

/// What a thread finds on disk.
pub(super) enum FoundRecord {
    /// A snapshot: its records follow.
    Snapshot(u64),
    Record(Vec<u8>),
    Nothing,
    Failed(String),
}
