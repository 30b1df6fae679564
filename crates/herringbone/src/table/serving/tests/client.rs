//! A client of a server without copies, which turns the server.

use super::{Serving, link_of};
use crate::{
    core::{
        session::{Role, handshake::Identity},
        table::{KeyForm, RequestAddress, RowKeys, TableAnswer, TableRequest, TableSpec, ValueCodec},
    },
    table::{
        TableOptions,
        link::MessageLink,
        optimizers::OwnOptimizers,
        shared::{ServiceShared, TableArrival, lock},
    },
};
use std::{
    os::unix::net::UnixStream,
    sync::Arc,
    time::{Duration, Instant},
};

/// A client of a server that it turns.
pub(super) struct TurnedClient {
    pub(super) serving: Serving,
    pub(super) link: MessageLink,
    last: u64,
}

impl TurnedClient {
    pub(super) fn start(options: &TableOptions) -> Self {
        let shared = Arc::new(ServiceShared::new(7).unwrap());
        let link = call(&shared);
        let serving = Serving::new(options, OwnOptimizers::default(), 7, shared).unwrap();
        Self { serving, link, last: 0 }
    }

    /// Its connection is cut, and it makes another one.
    pub(super) fn call_again(&mut self) {
        self.link = call(&self.serving.shared);
        self.turn_until(|serving| {
            serving.connections.len() == 1 && lock(&serving.shared.arrivals).is_empty()
        });
    }

    /// Its connection is cut, and the server knows.
    pub(super) fn hang_up(&mut self) {
        let (nowhere, _) = UnixStream::pair().unwrap();
        self.link = MessageLink::of_worker(link_of(nowhere));
        self.turn_until(|serving| serving.connections.is_empty());
    }

    pub(super) fn turn_until(&mut self, is_so: impl Fn(&Serving) -> bool) {
        let began = Instant::now();
        while !is_so(&self.serving) {
            assert!(began.elapsed() < Duration::from_secs(20), "it takes too long");
            self.serving.turn();
        }
    }

    pub(super) fn ask(&mut self, request: &TableRequest, form: KeyForm, values: &[u8]) -> TableAnswer {
        self.last += 1;
        let address = RequestAddress { range: 0, is_first: false }.encode();
        self.link.send(self.last, [&address, &request.encode_as(form).unwrap()[..], values].concat());
        let (began, mut received) = (Instant::now(), Vec::new());
        while received.is_empty() {
            assert!(began.elapsed() < Duration::from_secs(20), "{request:?} is not answered");
            self.link.flush().unwrap();
            self.serving.turn();
            self.link.receive(&mut received).unwrap();
        }
        TableAnswer::decode(&received[0].payload).unwrap().0
    }

    /// The number of a table of 100,000 rows.
    pub(super) fn open(&mut self) -> u32 {
        let spec = TableSpec { sparse: true, ..TableSpec::new(100_000, 1) };
        let open = TableRequest::Open { name: "t".into(), spec, ranges: 1, birth: None, is_whole: false };
        match self.ask(&open, KeyForm::Whole, &[]) {
            TableAnswer::Opened { table, .. } => table,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn used(&self) -> u64 {
        self.serving.memory.used_and_limit().0
    }
}

/// A worker's end of a new connection.
fn call(shared: &ServiceShared) -> MessageLink {
    let (here, there) = UnixStream::pair().unwrap();
    let who = Identity { role: Role::Worker, job: 0, rank: 0, world: 1, incarnation: 9 };
    lock(&shared.arrivals).push(TableArrival { link: MessageLink::of_server(link_of(there)), who });
    shared.bell.ring().unwrap();
    MessageLink::of_worker(link_of(here))
}

pub(super) fn pull(table: u32, keys: impl IntoIterator<Item = u64>) -> TableRequest {
    let keys = RowKeys::Listed(keys.into_iter().collect());
    TableRequest::Pull { table, step: 0, codec: ValueCodec::PLAIN, keys }
}
