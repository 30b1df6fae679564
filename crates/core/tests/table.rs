//! Tables: who sees which pushes, how keys are cut, and what messages say.

use herringbone_core::{
    codec::Codec,
    element::DType,
    table::{
        Asking, Consistency, Entered, IMAGE_CLOCKS, ImageHead, ImageRecord, Initializer, KeyForm, KnownKeys,
        NotANumber, NumberedPush, OptimizerKind, OptimizerParameter, OptimizerSpec, PAYLOAD_BYTES,
        RangeState, Ranges, RowKeys, TableAnswer, TableError, TableOperation, TableRequest, TableSpec,
        TakenPush, ValueCodec, WithdrawnPushes, WorkerClock,
        replication::{
            Candidacy, CopyPlace, Epoch, EpochId, HeldRange, ImagePart, PeerMessage, ServerLife,
            SettledEpoch, TableNode, Tenure,
        },
    },
};
use proptest::{collection::vec, prelude::*, sample::Index};
use std::collections::BTreeMap;

const WORKERS: u32 = 4;

/// What a worker does next, or what happens to it.
#[derive(Clone, Copy, Debug)]
enum Event {
    Push {
        ends: bool,
    },
    /// The last push comes once more, as after a broken connection.
    Repeat,
    Pull,
    /// It is started again, and goes on where the range says that it is.
    Restart,
    Leave,
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => any::<bool>().prop_map(|ends| Event::Push { ends }),
        2 => Just(Event::Repeat),
        6 => Just(Event::Pull),
        1 => Just(Event::Restart),
        1 => Just(Event::Leave),
    ]
}

fn any_consistency() -> impl Strategy<Value = Consistency> {
    prop_oneof![
        Just(Consistency::Sync),
        Just(Consistency::Async),
        (0..4_u32).prop_map(Consistency::Bounded),
        (1..6_u32).prop_map(Consistency::FirstOf),
    ]
}

/// A push: one of a worker in a step.
type Push = (u32, u64);

#[derive(Clone, Copy, Debug, Default)]
struct Worker {
    life: u64,
    step: u64,
    number: u64,
    /// The number, the step and the end of the last push.
    last: Option<(u64, u64, bool)>,
    is_there: bool,
}

/// A range whose only row counts what each worker has pushed in each step.
struct World {
    consistency: Consistency,
    state: RangeState<Push, (u32, u64)>,
    workers: Vec<Worker>,
    lives: u64,
    /// What the row has, by worker and step.
    row: BTreeMap<Push, u64>,
    /// What workers have pushed and not lost.
    pushed: BTreeMap<Push, u64>,
    /// The steps that each worker has ended.
    ended: BTreeMap<Push, ()>,
}

impl World {
    fn new(consistency: Consistency) -> Self {
        let state = RangeState::new(consistency, WORKERS);
        let workers = vec![Worker::default(); WORKERS as usize];
        let (row, pushed, ended) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut world = Self { consistency, state, workers, lives: 0, row, pushed, ended };
        (0..WORKERS).for_each(|worker| world.start(worker));
        world
    }

    fn start(&mut self, number: u32) {
        self.lives += 1;
        let entered = self.state.enter(number, self.lives).unwrap();
        if entered.has_half {
            let who = Asking { worker: number, life: self.lives, step: entered.step };
            let withdrawn = self.state.withdraw(who, 0).unwrap();
            assert!(withdrawn.step == entered.step && !withdrawn.dropped.is_empty());
            self.drop_half(number, &withdrawn.dropped);
        }
        let worker = &mut self.workers[number as usize];
        assert!(entered.step >= worker.step, "no step that has ended is forgotten");
        *worker = Worker { life: self.lives, step: entered.step, is_there: true, ..Worker::default() };
    }

    fn drop_half(&mut self, worker: u32, dropped: &[Push]) {
        for push in dropped {
            assert!(
                push.0 == worker && !self.ended.contains_key(push),
                "{push:?} is of a step that has ended"
            );
            let left = self.pushed.get_mut(push).unwrap();
            *left -= 1;
        }
    }

    fn asking(&self, number: u32) -> Asking {
        let worker = self.workers[number as usize];
        Asking { worker: number, life: worker.life, step: worker.step }
    }

    fn push(&mut self, number: u32, ends: bool) {
        let who = self.asking(number);
        let worker = &mut self.workers[number as usize];
        worker.number += 1;
        worker.last = Some((worker.number, worker.step, ends));
        let push = (number, worker.step);
        worker.step += u64::from(ends);
        let taken = self.state.push(who, self.workers[number as usize].number, ends, push).unwrap();
        *self.pushed.entry(push).or_default() += 1;
        if ends {
            self.ended.insert(push, ());
        }
        match taken {
            TakenPush::Now(push) => *self.row.entry(push).or_default() += 1,
            TakenPush::Kept => {}
            TakenPush::Again => panic!("a new push was taken for an old one"),
        }
    }

    fn step(&mut self, number: u32, event: Event) {
        let is_there = self.workers[number as usize].is_there;
        match event {
            Event::Restart => self.start(number),
            _ if !is_there => {}
            Event::Push { ends } => self.push(number, ends),
            Event::Repeat => {
                let Worker { last, life, .. } = self.workers[number as usize];
                if let Some((repeated, step, ends)) = last {
                    let who = Asking { worker: number, life, step };
                    let taken = self.state.push(who, repeated, ends, (number, step)).unwrap();
                    assert_eq!(taken, TakenPush::Again);
                }
            }
            Event::Pull => {
                self.state.pull(self.asking(number), (number, self.workers[number as usize].step)).unwrap()
            }
            Event::Leave => {
                // Nobody answers them.
                self.state.take_waiting_of(number);
                let dropped = self.state.leave(number);
                self.drop_half(number, &dropped);
                self.workers[number as usize].is_there = false;
            }
        }
        loop {
            for (worker, step) in self.state.ready() {
                self.check_answer(worker, step);
            }
            let Some(ended) = self.state.end_step() else { break };
            assert!(ended.pushes.is_sorted_by_key(|(worker, _)| *worker));
            if let Consistency::FirstOf(count) = self.consistency {
                assert_eq!(ended.pushes.len(), count as usize);
            }
            ended
                .pushes
                .into_iter()
                .flat_map(|(_, pushes)| pushes)
                .for_each(|push| *self.row.entry(push).or_default() += 1);
        }
        self.check_row();
    }

    /// Where so many steps take effect together, the row has whole steps that have ended, and all of them but fewer than that.
    fn check_row(&self) {
        let Consistency::FirstOf(count) = self.consistency else { return };
        for (push, has) in &self.row {
            assert!(
                self.ended.contains_key(push) && self.pushed[push] == *has,
                "{push:?} is there {has} times"
            );
        }
        let wait = self.ended.keys().filter(|push| !self.row.contains_key(push)).count();
        assert!(wait < count as usize, "{wait} steps wait, and {count} take effect together");
    }

    /// What a pull of a worker that has ended so many steps sees.
    fn check_answer(&self, worker: u32, step: u64) {
        let Some(bound) = self.consistency.bound() else { return };
        let has = |push: &Push| self.row.get(push).copied().unwrap_or_default();
        for (push, count) in &self.pushed {
            if push.1 + bound < step && (self.ended.contains_key(push) || !self.consistency.is_sync()) {
                assert_eq!(has(push), *count, "worker {worker} in step {step} does not see {push:?}");
            }
        }
        if self.consistency.is_sync() {
            let later = self.row.keys().find(|push| push.1 >= step && has(push) > 0);
            assert_eq!(later, None, "worker {worker} in step {step} sees what comes later");
        }
        for other in 0..WORKERS {
            let Worker { step: reached, is_there, .. } = self.workers[other as usize];
            assert!(
                !is_there || reached + bound >= step,
                "worker {worker} is further ahead of {other} than {bound}"
            );
        }
    }
}

proptest! {
    #[test]
    fn pulls_see_what_their_consistency_promises(
        consistency in any_consistency(),
        events in vec((0..WORKERS, any_event()), 1..200),
    ) {
        let mut world = World::new(consistency);
        for (worker, event) in events {
            world.step(worker, event);
        }
        // Once all that are waited for have come, and have ended as many steps, nobody waits.
        for worker in 0..WORKERS {
            if !world.state.clocks().any(|(known, ..)| known == worker) {
                world.start(worker);
            }
        }
        let most = world.workers.iter().map(|worker| worker.step).max().unwrap();
        for worker in 0..WORKERS {
            while world.workers[worker as usize].is_there && world.workers[worker as usize].step < most {
                world.step(worker, Event::Push { ends: true });
            }
        }
        prop_assert_eq!(world.state.waiting(), 0);
    }

    #[test]
    fn each_key_is_in_one_range(rows in 1..5000_u64, servers in 1..40_u32) {
        let ranges = Ranges::new(rows, servers);
        let mut next = 0;
        for range in 0..servers {
            let keys = ranges.keys(range);
            prop_assert_eq!(keys.start, next);
            prop_assert!(keys.end - keys.start <= rows.div_ceil(u64::from(servers)));
            keys.clone().for_each(|key| assert_eq!(ranges.of(key), range));
            next = keys.end;
        }
        prop_assert_eq!(next, rows);
    }

    #[test]
    fn pieces_have_all_keys_in_their_order(
        rows in 1..2000_u64,
        servers in 1..9_u32,
        most in 1..50_usize,
        chosen in vec(any::<Index>(), 0..200),
        run in any::<(Index, Index)>(),
    ) {
        let ranges = Ranges::new(rows, servers);
        let mut listed: Vec<u64> = chosen.iter().map(|index| index.index(rows as usize) as u64).collect();
        listed.sort_unstable();
        listed.dedup();
        let first = run.0.index(rows as usize) as u64;
        let count = run.1.index((rows - first) as usize) as u64 + 1;
        for keys in [RowKeys::Listed(listed.into()), RowKeys::Run { first, count }] {
            let pieces = ranges.cut(&keys, most);
            let mut at = 0;
            for piece in &pieces {
                prop_assert!(piece.keys.len() <= most && !piece.keys.is_empty());
                prop_assert!(piece.keys.are_right(&ranges.keys(piece.range)));
                prop_assert_eq!(&piece.at, &(at..at + piece.keys.len()));
                at = piece.at.end;
            }
            let joined: Vec<u64> = pieces.iter().flat_map(|piece| piece.keys.iter()).collect();
            prop_assert_eq!(joined, keys.iter().collect::<Vec<u64>>());
        }
    }
}

#[test]
fn the_largest_keys_there_are_are_cut_too() {
    assert_eq!(RowKeys::Run { first: u64::MAX, count: 2 }.get(1), u64::MAX);
    let ranges = Ranges::new(u64::MAX, 3);
    assert_eq!((ranges.of(0), ranges.of(u64::MAX - 1), ranges.keys(2).end), (0, 2, u64::MAX));
    assert!(!RowKeys::Run { first: 1, count: u64::MAX }.are_right(&(0..u64::MAX)));
    assert!(
        !RowKeys::Listed([3, 3].into()).are_right(&(0..9))
            && !RowKeys::Listed([4, 3].into()).are_right(&(0..9))
    );
}

fn spec() -> TableSpec {
    TableSpec {
        rows: 1 << 40,
        width: 64,
        dtype: DType::Bf16,
        sparse: true,
        initializer: Initializer::Normal { seed: 7, deviation: 0.1 },
        optimizer: OptimizerSpec::of(OptimizerKind::AdamW).with("beta1", 0.5).unwrap(),
        consistency: Consistency::Bounded(3),
        workers: 9,
        not_a_number: NotANumber::Counted,
    }
}

#[test]
fn a_message_has_the_numbers_that_its_optimizer_takes_and_ten_at_least() {
    for (kind, others) in OptimizerKind::ALL.map(|kind| (kind, kind.parameters())) {
        let others = others.iter().filter(|(parameter, _)| *parameter as usize >= 10).count();
        let mut optimizer = OptimizerSpec::of(kind);
        optimizer.numbers[OptimizerParameter::RescaleGrad as usize] = 0.25;
        let open = |optimizer| {
            let spec = TableSpec { optimizer, ..TableSpec::new(1, 1) };
            TableRequest::Open { name: "t".to_owned(), spec, ranges: 1, birth: None, is_whole: false }
        };
        let (bytes, add) = (open(optimizer).encode().unwrap(), open(OptimizerSpec::ADD).encode().unwrap());
        assert_eq!(bytes.len(), add.len() + 8 * others, "{kind}");
        assert_eq!(TableRequest::decode(&bytes).unwrap().0, open(optimizer), "{kind}");
    }
}

#[test]
fn messages_come_back_as_they_were() {
    let name = || "embeddings".to_owned();
    let keys = RowKeys::Listed([1, 5, 1 << 39].into());
    let int8 = ValueCodec::new(Codec::Int8).unwrap();
    let requests = [
        TableRequest::Open { name: name(), spec: spec(), ranges: 3, birth: Some(4), is_whole: true },
        TableRequest::Push { table: 3, step: 7, ends: true, codec: ValueCodec::PLAIN, keys: keys.clone() },
        TableRequest::Pull { table: 3, step: 7, codec: int8, keys: RowKeys::Run { first: 9, count: 4 } },
        TableRequest::Tune { table: 3, parameter: "momentum".to_owned(), number: 0.5 },
        TableRequest::Leave { table: 3 },
        TableRequest::Drop { name: name() },
        TableRequest::Withdraw { table: 1, step: 9, least: 1 << 40 },
        TableRequest::Save { table: 1, id: 2, step: 9 },
        TableRequest::Restore { name: name(), spec: spec(), ranges: 3 },
        TableRequest::Locate,
    ];
    for request in requests {
        let mut payload = request.encode().unwrap();
        let carries = matches!(request, TableRequest::Push { .. });
        payload.extend_from_slice(if carries { &[7; 12] } else { &[] });
        let (read, values) = TableRequest::decode(&payload).unwrap();
        assert_eq!((read, values.len()), (request, if carries { 12 } else { 0 }));
        assert!(
            (0..payload.len() - 12 * usize::from(carries))
                .all(|length| TableRequest::decode(&payload[..length]).is_err())
        );
    }
    for keys in [RowKeys::Listed([1, 5, 9].into()), RowKeys::Listed([2, 5, 9].into())] {
        let request = TableRequest::Pull { table: 3, step: 7, codec: int8, keys };
        let (mut known, number) = (KnownKeys::default(), 0);
        let by_number = request.encode_as(KeyForm::Known(number)).unwrap();
        assert!(TableRequest::decode_knowing(&by_number, &mut known).is_err());
        let taught = request.encode_as(KeyForm::Taught(number)).unwrap();
        for payload in [taught, by_number] {
            assert!((0..payload.len()).all(|length| TableRequest::decode(&payload[..length]).is_err()));
            assert_eq!(TableRequest::decode_knowing(&payload, &mut known).unwrap().0, request);
        }
    }
    let refused = [
        TableError::Unknown,
        TableError::Differs { what: "width".into() },
        TableError::Unusable("no".into()),
        TableError::RowKeys { first: 1, last: 2, begin: 3, end: 4 },
        TableError::Missing { key: u64::MAX },
        TableError::Length { expected: 1, found: 2 },
        TableError::NotANumber { key: 5 },
        TableError::Full { limit: 6 },
        TableError::Step { expected: 7, found: 8 },
        TableError::Worker { worker: 9, workers: 3 },
        TableError::Twice { worker: 1 },
        TableError::TooMany { what: "tables".into(), limit: 2 },
        TableError::Restoring,
        TableError::Passed,
        TableError::Malformed("bytes".into()),
    ];
    let answers = [
        TableAnswer::Opened { table: 1, step: 2, has_half: true, is_new: false, is_whole: true },
        TableAnswer::Done,
        TableAnswer::Rows,
        TableAnswer::Dropped { was_there: true },
        TableAnswer::Withdrawn { step: 9 },
        TableAnswer::Restored { id: Some(7) },
        TableAnswer::Elsewhere { owner: Some(2), is_lost: false },
    ];
    for answer in answers.into_iter().chain(refused.map(TableAnswer::Refused)) {
        let payload = answer.encode();
        assert_eq!(TableAnswer::decode(&payload).unwrap(), (answer, &[][..]));
    }
}

#[test]
fn words_between_servers_come_back_as_they_were_and_damaged_ones_are_no_panic() {
    let id = |counter| EpochId { counter, decider: 2 };
    let members = [(0, 7), (2, u64::MAX)].into_iter().collect();
    let epoch = Epoch { id: id(4), members };
    let copies = vec![CopyPlace { server: 2, sequence: Some(9) }, CopyPlace { server: 1, sequence: None }];
    let tenures = vec![Tenure { last: id(4), owner: Some(0), copies }, Tenure::default()];
    let settled = SettledEpoch { epoch: epoch.clone(), tenures };
    let process = ServerLife { server: 1, life: 3 };
    let held = HeldRange { range: 1, epoch: id(3), sequence: 8, is_settled: true };
    let candidacy = Candidacy {
        settled: Some(settled.clone()),
        possible: vec![epoch.clone()],
        highest: id(9),
        dead: vec![process],
        replaced: vec![process, process],
    };
    let image = |part| PeerMessage::Image { epoch: id(4), range: 1, part, record: vec![5; 40] };
    let messages = [
        PeerMessage::Standing {
            epoch: Some(epoch.clone()),
            is_unsure: true,
            proposes: Some(id(5)),
            whole: vec![0, 2],
            hears: vec![process],
        },
        PeerMessage::Call { settled: id(1) },
        PeerMessage::Come(candidacy),
        PeerMessage::Withdraw,
        PeerMessage::GiveUp,
        PeerMessage::Propose { epoch, bases: vec![id(1), id(2)] },
        PeerMessage::Promise { id: id(4), held: vec![held] },
        PeerMessage::Refuse { id: id(4), highest: id(6) },
        PeerMessage::Commit(settled),
        PeerMessage::Operate { epoch: id(4), range: 1, sequence: 5, stable: 4, operation: vec![1, 2, 3] },
        PeerMessage::Executed { epoch: id(4), range: 1, sequence: 5 },
        image(ImagePart::Begin { sequence: 5 }),
        image(ImagePart::Record),
        image(ImagePart::End),
        image(ImagePart::Counted),
    ];
    for message in messages {
        let payload = message.encode();
        assert_eq!(PeerMessage::decode(&payload).as_ref(), Ok(&message));
        let mut node = TableNode::new(ServerLife { server: 0, life: 7 }, 3, 1);
        node.linked(ServerLife { server: 2, life: u64::MAX }, 0);
        for at in 0..payload.len() {
            // What is cut short may be a shorter operation; nothing is a panic, also not for a server that believes it.
            let mut damaged = payload.clone();
            damaged[at] ^= 0x41;
            for bytes in [&payload[..at], &damaged] {
                if let Ok(message) = PeerMessage::decode(bytes) {
                    node.receive(2, message, at as u64);
                    node.outputs();
                }
            }
        }
        node.receive(2, message, 300);
    }
    let request = TableOperation::Request { worker: 1, life: 2, number: 3, payload: vec![4; 9] };
    let give_up = TableOperation::GiveUp { table: 1, worker: 2, life: 3 };
    let load = TableOperation::Load { record: vec![6; 5] };
    for operation in [request, TableOperation::EndStep { table: 8 }, give_up, load, TableOperation::Unload] {
        assert_eq!(TableOperation::decode(&operation.encode()), Ok(operation));
    }
    assert!(TableOperation::decode(&[]).is_err() && TableOperation::decode(&[9]).is_err());
}

#[test]
fn records_of_images_come_back_as_they_were() {
    let head = ImageHead {
        name: "n".repeat(200),
        number: 3,
        spec: spec(),
        optimizer: spec().optimizer.with("learning_rate", 0.5).unwrap(),
        range: 1,
        ranges: 2,
        version: 1 << 40,
        began_at: 1 << 39,
        birth: Some(9),
        not_numbers: 7,
    };
    let clock =
        |worker| WorkerClock { worker, life: 5, step: 6, number: u64::MAX, has_left: worker % 2 == 0 };
    let keys = RowKeys::Listed([7, 1, 1 << 39].into());
    let records = [
        ImageRecord::Head(Box::new(head)),
        ImageRecord::Clocks((0..IMAGE_CLOCKS as u32).map(clock).collect()),
        ImageRecord::Kept { step: 9, worker: 8, number: 7, keys: RowKeys::Run { first: 1, count: 2 } },
        ImageRecord::Rows { keys },
        ImageRecord::End { records: 4, rows: 3 },
    ];
    for record in records {
        let mut bytes = record.encode().unwrap();
        assert!(bytes.len() <= PAYLOAD_BYTES);
        assert!((0..bytes.len().min(500)).all(|length| ImageRecord::decode(&bytes[..length]).is_err()));
        let carries = matches!(record, ImageRecord::Kept { .. } | ImageRecord::Rows { .. });
        bytes.extend_from_slice(&[7; 12]);
        assert_eq!(ImageRecord::decode(&bytes).is_ok(), carries);
        bytes.truncate(bytes.len() - if carries { 0 } else { 12 });
        let (read, behind) = ImageRecord::decode(&bytes).unwrap();
        assert_eq!((read, behind.len()), (record, if carries { 12 } else { 0 }));
    }
}

#[test]
fn clocks_of_an_image_are_those_of_a_range() {
    let clock = |worker, step| WorkerClock { worker, life: 1, step, number: 3, has_left: false };
    let fresh = || RangeState::<u32, ()>::new(Consistency::Sync, 2);
    for clocks in [vec![clock(2, 5)], vec![clock(1, 5), clock(0, 5)], vec![clock(0, u64::MAX)]] {
        assert!(fresh().restore_clocks(clocks).is_err());
    }
    assert!(fresh().restore(u64::MAX, 0).is_err() && fresh().restore(0, u64::MAX).is_err());
    let mut state = fresh();
    state.restore(4, 0).unwrap();
    state.restore_clocks([clock(0, 5), clock(1, 4)]).unwrap();
    let push = |number| NumberedPush { number, push: number as u32 };
    assert!(state.restore_kept(3, 0, push(1)).is_err() && state.restore_kept(5, 1, push(1)).is_err());
    [(4, 0, 10), (4, 0, 11), (4, 1, 12), (5, 0, 13)]
        .into_iter()
        .for_each(|(step, worker, number)| state.restore_kept(step, worker, push(number)).unwrap());
    assert_eq!(state.worker_clocks().collect::<Vec<_>>(), [clock(0, 5), clock(1, 4)]);
    let kept: Vec<_> = state.kept().map(|(step, worker, push)| (step, worker, push.number)).collect();
    assert_eq!(kept, [(4, 0, 10), (4, 0, 11), (4, 1, 12), (5, 0, 13)]);
    let who = Asking { worker: 1, life: 1, step: 4 };
    assert_eq!(state.push(who, 3, true, 0), Ok(TakenPush::Again));
    assert!(state.push(who, 4, true, 14) == Ok(TakenPush::Kept));
    assert_eq!(state.end_step().unwrap().pushes, [(0, vec![10, 11]), (1, vec![12, 14])]);
    assert_eq!(state.version(), 5);
}

#[test]
fn what_is_withdrawn_from_a_number_on_leaves_the_pushes_before_it() {
    let mut state: RangeState<u32, ()> = RangeState::new(Consistency::Sync, 1);
    state.enter(0, 7).unwrap();
    let who = Asking { worker: 0, life: 7, step: 0 };
    for number in [10, 11, 20, 21] {
        state.push(who, number, false, number as u32).unwrap();
    }
    assert_eq!(state.withdraw(who, 20), Ok(WithdrawnPushes { step: 0, dropped: vec![20, 21] }));
    assert_eq!(state.push(who, 21, false, 21), Ok(TakenPush::Again), "an old one");
    state.push(who, 22, true, 22).unwrap();
    assert_eq!(state.withdraw(who, 0), Ok(WithdrawnPushes { step: 1, dropped: vec![] }));
    assert_eq!(state.end_step().unwrap().pushes, [(0, vec![10, 11, 22])]);
    state.push(Asking { step: 1, ..who }, 23, false, 23).unwrap();
    state.withdraw(Asking { step: 1, ..who }, 0).unwrap();
    assert_eq!(state.enter(0, 8), Ok(Entered { step: 1, has_half: false }));
}

#[test]
fn nothing_is_kept_of_a_push_of_no_rows() {
    let mut state: RangeState<u32, ()> = RangeState::new(Consistency::Sync, 1);
    state.enter(0, 7).unwrap();
    let who = Asking { worker: 0, life: 7, step: 0 };
    assert_eq!((state.push_no_rows(who, 1, false), state.push_no_rows(who, 1, true)), (Ok(true), Ok(false)));
    assert_eq!(state.enter(0, 7), Ok(Entered { step: 0, has_half: false }));
    assert_eq!((state.push_no_rows(who, 2, true), state.kept().count()), (Ok(true), 0));
    assert_eq!(state.push_no_rows(who, 3, true), Err(TableError::Step { expected: 1, found: 0 }));
    assert_eq!(state.end_step().unwrap().pushes, []);
}

#[test]
fn steps_that_take_effect_together_may_be_one_workers() {
    let mut state: RangeState<u32, ()> = RangeState::new(Consistency::FirstOf(2), 2);
    (0..2).for_each(|worker| assert_eq!(state.enter(worker, 7).unwrap().step, 0));
    let who = |worker, step| Asking { worker, life: 7, step };
    assert_eq!(state.push(who(1, 0), 1, true, 10), Ok(TakenPush::Kept));
    assert_eq!(state.push(who(0, 0), 1, false, 20), Ok(TakenPush::Kept));
    assert_eq!(state.end_step(), None, "one has not ended");
    assert!(!state.waits(1), "a pull waits for nobody");
    assert_eq!(state.push(who(1, 1), 2, true, 11), Ok(TakenPush::Kept));
    assert_eq!(state.end_step().unwrap().pushes, [(0, vec![10]), (1, vec![11])]);
    assert_eq!((state.leave(0), state.end_step()), (vec![20], None), "a step that was not ended is dropped");
}

/// A worker that dies while it ends a step may have ended it on another range: its next life ends it here, too.
#[test]
fn a_step_that_was_half_ended_is_ended_by_the_next_life() {
    let mut state: RangeState<u32, ()> = RangeState::new(Consistency::Sync, 1);
    state.enter(0, 7).unwrap();
    state.push(Asking { worker: 0, life: 7, step: 0 }, 1, false, 5).unwrap();
    assert_eq!(state.enter(0, 8), Ok(Entered { step: 0, has_half: true }));
    let who = Asking { worker: 0, life: 8, step: 0 };
    let elsewhere = state.withdraw(Asking { step: 1, ..who }, 0);
    assert_eq!(elsewhere, Ok(WithdrawnPushes { step: 0, dropped: vec![] }), "it is in another step");
    state.push(who, 1, true, 6).unwrap();
    assert_eq!(state.end_step().unwrap().pushes, [(0, vec![5, 6])]);
    assert_eq!(state.enter(0, 9), Ok(Entered { step: 1, has_half: false }));
}

#[test]
fn a_specification_that_cannot_be_says_what_to_change() {
    let wrong = |change: fn(&mut TableSpec)| {
        let mut changed = spec();
        change(&mut changed);
        changed.check("t").unwrap_err().0
    };
    assert!(spec().check("t").is_ok());
    for (name, problem) in [
        ("a\nb", "character 2 of the table's name is U+000A"),
        ("ab\u{202e}c", "character 3 of the table's name is U+202E"),
        ("\u{200b}", "U+200B"),
        ("", "1 to 200 bytes"),
    ] {
        let refused = spec().check(name).unwrap_err().0;
        assert!(refused.contains(problem), "{refused}");
    }
    // Marks that are seen, and letters of all scripts.
    assert!(spec().check("gewichte e\u{301} \u{5d0} \u{1f600}").is_ok());
    assert!(wrong(|spec| spec.width = 0).contains("rows of 0 elements"));
    assert!(wrong(|spec| spec.dtype = DType::I32).contains("use f32, f64 or bf16"));
    assert!(wrong(|spec| spec.workers = 0).contains("0 workers"));
    assert!(
        wrong(|spec| spec.optimizer.numbers[OptimizerParameter::Beta1 as usize] = 1.5)
            .contains("beta1 of 1.5")
    );
    assert!(
        wrong(|spec| (spec.sparse, spec.initializer) = (false, Initializer::Missing))
            .contains("make it sparse")
    );
    assert!(
        OptimizerSpec::ADD
            .with("momentum", 0.1)
            .unwrap_err()
            .0
            .contains("it takes rescale_grad, clip_gradient")
    );
    let other = TableSpec { width: 1, consistency: Consistency::Sync, ..spec() };
    assert_eq!(spec().difference(&other), ["width", "consistency"]);
    assert!(spec().digest("a") != spec().digest("b") && spec().digest("a") != other.digest("a"));
}

#[test]
fn a_job_that_begins_after_all_have_left_waits_for_all() {
    for consistency in [Consistency::Sync, Consistency::Bounded(2), Consistency::Async] {
        let mut state = RangeState::<u32, u32>::new(consistency, 2);
        let asking = |worker, life, step| Asking { worker, life, step };
        [0, 1].into_iter().for_each(|worker| assert_eq!(state.enter(worker, 1).unwrap().step, 0));
        for (worker, steps) in [(0, 3), (1, 2)] {
            for step in 0..steps {
                state.push(asking(worker, 1, step), step + 1, true, worker).unwrap();
            }
        }
        [0, 1].into_iter().for_each(|worker| assert_eq!(state.leave(worker), []));
        // What a worker has ended counts, though the other one has not ended it.
        let ended = core::iter::from_fn(|| state.end_step()).count();
        assert_eq!(ended, if consistency.is_sync() { 3 } else { 0 });
        let begin = state.enter(1, 2).unwrap().step;
        assert_eq!(begin, if consistency == Consistency::Async { 2 } else { 3 }, "{consistency:?}");
        for step in begin..begin + 3 {
            state.push(asking(1, 2, step), step + 1, true, 1).unwrap();
        }
        state.pull(asking(1, 2, begin + 3), 7).unwrap();
        assert_eq!(state.end_step(), None);
        let waits = consistency != Consistency::Async;
        assert_eq!(state.ready().is_empty(), waits, "{consistency:?}");
        if !waits {
            continue;
        }
        // The other one begins where all began.
        assert_eq!(state.enter(0, 2).unwrap().step, 3);
        for step in 3..6 {
            state.push(asking(0, 2, step), step + 1, true, 0).unwrap();
        }
        let ended: Vec<_> = core::iter::from_fn(|| state.end_step()).map(|step| step.pushes.len()).collect();
        assert_eq!(ended, if consistency.is_sync() { vec![2; 3] } else { vec![] });
        assert_eq!(state.ready(), [7]);
    }
}

#[test]
fn a_name_of_a_codec_that_tables_do_not_take_is_answered_with_those_that_they_take() {
    for (name, codec) in
        [("plain", Codec::Plain), ("bf16", Codec::Bf16), ("fp16", Codec::Fp16), ("int8", Codec::Int8)]
    {
        assert_eq!(name.parse::<ValueCodec>().unwrap().codec(), codec);
    }
    for wrong in ["zip", "topk:0.1", "onebit"] {
        let refused = wrong.parse::<ValueCodec>().unwrap_err().0;
        assert!(refused.ends_with("use plain, bf16, fp16 or int8"), "{refused}");
    }
}
