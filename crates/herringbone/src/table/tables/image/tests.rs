//! A table's image, sent while workers push and pull, makes the same table.

use super::{FrozenTable, ImageCursor, TableLoader};
use crate::{
    core::table::{
        Consistency, Initializer, KnownKeys, NotANumber, OptimizerKind, OptimizerSpec, PAYLOAD_BYTES,
        RequestAddress, RowKeys, TableAnswer, TableError, TableOperation, TableRequest, TableSpec,
        ValueCodec,
    },
    table::{
        kept_push::KeptPayload,
        memory::TableMemory,
        optimizers::OwnOptimizers,
        tables::{ReplyContent, ServedRequest, TableCaller, Tables, first_number},
    },
};
use proptest::{collection::vec, prelude::*};

const WORKERS: u32 = 3;
const ROWS: u64 = 400;

/// The table's number: worker 0 has made it with its first request.
fn table() -> u32 {
    first_number(90, 1)
}

/// The owner's tables, and what waits to be told.
struct Site {
    tables: Tables,
    numbers: Vec<u64>,
    waiting: Vec<ReplyContent>,
}

impl Site {
    fn new() -> Self {
        let tables = Tables::new(0, TableMemory::new(1 << 30), OwnOptimizers::default(), false);
        Self { tables, numbers: vec![0; WORKERS as usize], waiting: Vec::new() }
    }

    /// Serves a request. Returns what copies are to execute.
    fn serve(&mut self, worker: u32, request: &TableRequest, values: &[u8]) -> Vec<TableOperation> {
        let caller = TableCaller { connection: u64::from(worker), worker, life: 90 };
        let number = &mut self.numbers[worker as usize];
        *number += 1;
        let mut payload = RequestAddress { range: 0, is_first: false }.encode().to_vec();
        payload.extend(request.encode().unwrap());
        payload.extend_from_slice(values);
        let mut served = ServedRequest { operations: Some(Vec::new()), ..ServedRequest::default() };
        let (request, payload) = KeptPayload::decode(payload, &mut KnownKeys::default()).unwrap();
        self.tables.serve(&caller, *number, request, payload, |_, _| true, &mut served);
        self.keep(served)
    }

    fn keep(&mut self, served: ServedRequest) -> Vec<TableOperation> {
        for reply in served.replies {
            if let ReplyContent::Answer(TableAnswer::Refused(error)) = &reply.content {
                panic!("{error}");
            }
            self.waiting.push(reply.content);
        }
        served.operations.unwrap()
    }

    /// Tells rows that wait to be told.
    fn tell(&mut self) -> Vec<TableOperation> {
        let mut operations = Vec::new();
        while let Some(content) = self.waiting.pop() {
            let mut served = ServedRequest { operations: Some(Vec::new()), ..ServedRequest::default() };
            self.tables.payload(&content, &mut served);
            operations.extend(self.keep(served));
        }
        operations
    }
}

fn spec(sparse: bool, consistency: Consistency) -> TableSpec {
    TableSpec {
        sparse,
        consistency,
        workers: WORKERS,
        optimizer: OptimizerSpec::of(OptimizerKind::Adam),
        initializer: Initializer::Normal { seed: 1, deviation: 1.0 },
        not_a_number: NotANumber::Counted,
        ..TableSpec::new(ROWS, 200)
    }
}

fn open(spec: &TableSpec) -> TableRequest {
    TableRequest::Open { name: "t".to_owned(), spec: spec.clone(), ranges: 1, birth: None, is_whole: false }
}

/// All records of an image.
fn records(tables: &Tables, number: u32) -> Vec<Vec<u8>> {
    let (mut cursor, mut all) = (tables.image(number).unwrap(), Vec::new());
    while let Some(record) = tables.image_step(number, &mut cursor).unwrap() {
        all.push(record);
    }
    all
}

fn frozen_records(mut frozen: FrozenTable) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| frozen.next().unwrap()).collect()
}

/// What happens next.
#[derive(Clone, Debug)]
enum Event {
    Push {
        worker: u32,
        keys: RowKeys,
        ends: bool,
    },
    Pull {
        worker: u32,
    },
    Tell,
    Tune {
        rate: f64,
    },
    /// A record goes to the copy.
    Record,
}

fn any_event() -> impl Strategy<Value = Event> {
    let keys = prop_oneof![
        (0..ROWS, 1..100_u64)
            .prop_map(|(first, count)| RowKeys::Run { first, count: count.min(ROWS - first) }),
        vec(0..ROWS, 1..30).prop_map(|mut keys| {
            keys.sort_unstable();
            keys.dedup();
            RowKeys::Listed(keys.into())
        }),
    ];
    prop_oneof![
        8 => (0..WORKERS, keys, any::<bool>()).prop_map(|(worker, keys, ends)| Event::Push { worker, keys, ends }),
        3 => (0..WORKERS).prop_map(|worker| Event::Pull { worker }),
        3 => Just(Event::Tell),
        1 => (0.0..0.1).prop_map(|rate| Event::Tune { rate }),
        2 => Just(Event::Record),
    ]
}

/// A table with its copy, which begins to come at some event.
struct Pair {
    source: Site,
    copy: Tables,
    steps: Vec<u64>,
    cursor: Option<(ImageCursor, Option<TableLoader>)>,
    is_copied: bool,
}

impl Pair {
    fn new(spec: &TableSpec) -> Self {
        let mut source = Site::new();
        (0..WORKERS).for_each(|worker| drop(source.serve(worker, &open(spec), &[])));
        let copy = Tables::new(0, TableMemory::new(1 << 30), OwnOptimizers::default(), true);
        Self { source, copy, steps: vec![0; WORKERS as usize], cursor: None, is_copied: false }
    }

    fn begin(&mut self) {
        self.cursor = Some((self.source.tables.image(table()).unwrap(), None));
        self.copy.begin_loading();
        while self.cursor.as_ref().unwrap().0.is_in_head() {
            assert!(self.record());
        }
    }

    /// Sends a record, if one is left.
    fn record(&mut self) -> bool {
        let Some((cursor, loader)) = &mut self.cursor else { return false };
        let Some(record) = self.source.tables.image_step(table(), cursor).unwrap() else {
            return false;
        };
        assert!(record.len() <= PAYLOAD_BYTES);
        match loader {
            None => *loader = Some(TableLoader::begin(&mut self.copy, &record).unwrap()),
            Some(loader) => self.is_copied = loader.apply(&mut self.copy, &record).unwrap(),
        }
        true
    }

    /// The copy executes what the source has executed, as it goes over the wire.
    fn follow(&mut self, operations: Vec<TableOperation>) {
        for operation in operations.into_iter().filter(|_| self.cursor.is_some()) {
            self.copy.execute(TableOperation::decode(&operation.encode()).unwrap()).unwrap();
        }
    }

    fn change(&mut self, worker: u32, request: &TableRequest, values: &[u8]) {
        let operations = self.source.serve(worker, request, values);
        self.follow(operations);
    }

    fn tell(&mut self) {
        let operations = self.source.tell();
        self.follow(operations);
    }

    fn step(&mut self, event: Event, seed: usize) {
        match event {
            Event::Push { worker, keys, ends } => {
                let number = |at: usize| ((at * 7 + seed * 31) % 101) as f32 - 50.0;
                let values: Vec<u8> = (0..keys.len() * 200).flat_map(|at| number(at).to_le_bytes()).collect();
                let step = self.steps[worker as usize];
                self.steps[worker as usize] += u64::from(ends);
                self.change(
                    worker,
                    &TableRequest::Push { table: table(), step, ends, codec: ValueCodec::PLAIN, keys },
                    &values,
                );
            }
            Event::Pull { worker } => {
                let (step, keys) = (self.steps[worker as usize], RowKeys::Run { first: 3, count: 2 });
                self.change(
                    worker,
                    &TableRequest::Pull { table: table(), step, codec: ValueCodec::PLAIN, keys },
                    &[],
                );
            }
            Event::Tell => self.tell(),
            Event::Tune { rate } => {
                let parameter = "learning_rate".to_owned();
                self.change(0, &TableRequest::Tune { table: table(), parameter, number: rate }, &[]);
            }
            Event::Record => {
                self.record();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_copy_that_comes_while_workers_push_is_the_same(
        sparse in any::<bool>(),
        consistency in prop_oneof![Just(Consistency::Sync), Just(Consistency::Bounded(2)), Just(Consistency::Async)],
        before in vec(any_event(), 0..30),
        during in vec(any_event(), 0..60),
    ) {
        let mut pair = Pair::new(&spec(sparse, consistency));
        before.into_iter().enumerate().for_each(|(seed, event)| pair.step(event, seed));
        pair.begin();
        during.into_iter().enumerate().for_each(|(seed, event)| pair.step(event, seed + 100));
        while !pair.is_copied {
            prop_assert!(pair.record());
        }
        pair.copy.end_loading(&pair.source.tables.last_record()).unwrap();
        prop_assert!(records(&pair.source.tables, table()) == records(&pair.copy, table()), "steps that have ended, and not taken effect");
        pair.tell();
        prop_assert!(records(&pair.source.tables, table()) == records(&pair.copy, table()));
        let frozen = frozen_records(pair.source.tables.freeze(table()).unwrap());
        prop_assert!(frozen == frozen_records(pair.copy.freeze(table()).unwrap()));
    }
}

#[test]
fn an_image_that_makes_no_sense_leaves_no_table() {
    for consistency in [Consistency::Sync, Consistency::Async] {
        let mut pair = Pair::new(&spec(true, consistency));
        let all = RowKeys::Run { first: 0, count: ROWS };
        (0..WORKERS).for_each(|worker| {
            pair.step(Event::Push { worker, keys: all.clone(), ends: true }, 1);
            pair.step(Event::Push { worker, keys: all.part(5..9), ends: false }, 1);
        });
        let records = records(&pair.source.tables, table());
        let load = |records: &[Vec<u8>], limit: u64| {
            let memory = TableMemory::new(limit);
            let mut tables = Tables::new(0, memory.clone(), OwnOptimizers::default(), false);
            let mut loader = TableLoader::begin(&mut tables, &records[0])?;
            let loaded = records[1..].iter().try_fold(false, |_, record| loader.apply(&mut tables, record));
            assert!(loaded.is_ok() || tables.status(|_, _| true).is_empty() && memory.check(limit).is_ok());
            loaded
        };
        assert_eq!(load(&records, 1 << 30), Ok(true));
        assert_eq!(load(&records, 50_000), Err(TableError::Full { limit: 50_000 }));
        for at in 0..records.len() {
            let without = [&records[..at], &records[at + 1..]].concat();
            assert!(load(&without, 1 << 30) != Ok(true), "record {at} is missing");
            for length in (0..records[at].len()).step_by(1 + records[at].len() / 20) {
                let mut cut = records.clone();
                cut[at].truncate(length);
                assert!(load(&cut, 1 << 30).is_err(), "record {at} has {length} bytes");
            }
            for flipped in (0..records[at].len()).step_by(1 + records[at].len() / 40) {
                let mut damaged = records.clone();
                damaged[at][flipped] ^= 0x81;
                // Some are other rows; none is a panic.
                let _loaded = load(&damaged, 1 << 30);
            }
        }
    }
}

/// After a connection has broken requests come once more, in their order.
#[test]
fn a_withdrawal_that_is_repeated_leaves_what_came_after_it() {
    let mut pair = Pair::new(&spec(true, Consistency::Sync));
    let keys = RowKeys::Run { first: 0, count: 1 };
    let push = |keys: &RowKeys| Event::Push { worker: 0, keys: keys.clone(), ends: false };
    pair.begin();
    pair.step(push(&keys), 1);
    let withdraw = TableRequest::Withdraw { table: table(), step: 0, least: pair.source.numbers[0] };
    pair.change(0, &withdraw, &[]);
    pair.step(push(&keys), 2);
    let (image, last) = (records(&pair.source.tables, table()), pair.source.numbers[0]);
    pair.source.numbers[0] -= 2;
    pair.change(0, &withdraw, &[]);
    pair.step(push(&keys), 2);
    assert_eq!(pair.source.numbers[0], last);
    assert!(records(&pair.source.tables, table()) == image, "one push is kept");
    while !pair.is_copied {
        assert!(pair.record());
    }
    assert!(records(&pair.copy, table()) == image);
    let withdraw = TableRequest::Withdraw { table: table(), step: 0, least: last };
    pair.change(0, &withdraw, &[]);
    assert!(records(&pair.copy, table()).len() < image.len(), "a copy knows the numbers, too");
}
