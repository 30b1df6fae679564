use super::*;
use crate::schedule::{Form, Place, ProgramBuilder};

const SUM: Collective = Collective::AllReduce;

fn prove(collective: Collective, text: &str) -> Result<Verified, VerifyError> {
    let schedule = Schedule::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let group = Group::of_size(schedule.workers());
    verify(schedule, collective, &group)
}

/// Two workers that swap their inputs; `own` is what rank 0 does, after its slots s0 (plain) and s1 (acc).
fn with_rank_0(own: &str) -> String {
    let other = "slots plain\n send u0 -> 0\n recv c0 s0 <- 0\n finish c0 u0 = u0 s0+";
    format!(
        "schedule workers=2 reducers=1 cut=even:2\nrank 0\nslots plain acc\n{own}\nrank 1\n{other}\nrank 2\n"
    )
}

fn fault_of_rank_0(collective: Collective, own: &str) -> (u32, StepFault) {
    match prove(collective, &with_rank_0(own)) {
        Err(VerifyError::Step { rank: 0, step, fault }) => (step, fault),
        other => panic!("{own}: {other:?}"),
    }
}

#[test]
fn a_swap_is_an_all_reduce() {
    let own = "send u0 -> 1\n recv c0 s0 <- 1\n finish c0 u0 = u0 s0+";
    let text = with_rank_0(own).replace("even:2", "even:1");
    let proved = prove(SUM, &text).unwrap();
    assert_eq!((proved.order(), proved.serial(), proved.restartable()), (Order::Fixed, true, true));
    assert_eq!(proved.collective(), SUM);
    assert_eq!((proved.schedule().workers(), proved.group().size()), (2, 2));
    let unproved = prove(SUM, &with_rank_0(own)).unwrap_err();
    assert_eq!(unproved, VerifyError::Result { rank: 0, chunk: 1, fault: ResultFault::Unfinished });
}

#[test]
fn a_step_alone_can_be_wrong() {
    let (user, slot, acc) = (Place::User(0), Place::Slot(0), Place::Slot(1));
    let cases = [
        ("send s2 -> 1", StepFault::NoSuchSlot { slot: 2 }),
        ("send u2 -> 1", StepFault::NoSuchChunk { chunk: 2, chunks: 2 }),
        ("recv c2 s0 <- 1", StepFault::NoSuchChunk { chunk: 2, chunks: 2 }),
        ("send u0 -> 3", StepFault::NoSuchRank { lane: 3 }),
        ("recv c0 s0 <- 3", StepFault::NoSuchRank { lane: 3 }),
        ("fold c0 s1 = @3:acc", StepFault::NoSuchRank { lane: 3 }),
        ("send u0 -> 0", StepFault::OwnLane),
        ("send u0 -> 1 2 1", StepFault::SendTwice { to: 1 }),
        ("fold c0 s1 = u0 u0+", StepFault::FoldTwice { place: user }),
        ("fold c0 s1 = u0 u1++", StepFault::MergeOfNothing { source_index: 1 }),
        ("fold c0 s1 = u0+", StepFault::MergeOfNothing { source_index: 0 }),
        ("fold c0 s1 = u0 @1:plain", StepFault::Unmerged { left: 2 }),
        ("recv c1 u0 <- 1", StepFault::Misplaced { place: user, actual: 1 }),
        ("finish c1 u0 = u1", StepFault::Misplaced { place: user, actual: 1 }),
        ("copy s0 = s0", StepFault::CopyToItself { place: slot }),
        ("copy s1 = u0", StepFault::WrongForm { place: acc, actual: Form::Acc, expected: Form::Plain }),
        ("fold c0 s0 = u0", StepFault::WrongForm { place: slot, actual: Form::Plain, expected: Form::Acc }),
        ("finish c0 s1 = u0", StepFault::WrongForm { place: acc, actual: Form::Acc, expected: Form::Plain }),
        ("fold c0 u0 = u0", StepFault::WrongForm { place: user, actual: Form::Plain, expected: Form::Acc }),
    ];
    for (own, fault) in cases {
        assert_eq!(fault_of_rank_0(SUM, own), (0, fault), "{own}");
    }
    let reducer = "schedule workers=1 reducers=1 cut=even:1\nrank 0\nrank 1\nsend u0 -> 0";
    let fault = StepFault::UserOfReducer;
    assert_eq!(prove(SUM, reducer).unwrap_err(), VerifyError::Step { rank: 1, step: 0, fault });
}

/// What the text form cannot say.
#[test]
fn an_empty_fold_is_no_fold() {
    let mut program = ProgramBuilder::new();
    program.fold_shaped(0, [], Place::User(0), true);
    let schedule = Schedule::listed(1, crate::schedule::Cut::Even { chunks: 1 }, vec![program.build()]);
    let error = verify(schedule, SUM, &Group::of_size(1)).unwrap_err();
    assert_eq!(error, VerifyError::Step { rank: 0, step: 0, fault: StepFault::FoldOfNothing });
}

/// One worker, and a reducer that returns its first message where it sends one.
#[test]
fn a_step_can_meet_what_it_must_not() {
    let (user, slot) = (Place::User(0), Place::Slot(0));
    let form = StepFault::WrongMessageForm { lane: 1, actual: Form::Plain, expected: Form::Acc };
    let cases = [
        ("copy u0 = s0", StepFault::Uninitialised { place: slot }),
        ("fold c0 s1 = u0 s0+", StepFault::Uninitialised { place: slot }),
        ("fold c1 s1 = u0", StepFault::WrongChunk { place: user, actual: 0, expected: 1 }),
        ("copy s0 = u1\n copy u0 = s0", StepFault::Misplaced { place: user, actual: 1 }),
        (
            "finish c0 u0 = u0\n fold c0 s1 = u1 u0+",
            StepFault::WrongChunk { place: Place::User(1), actual: 1, expected: 0 },
        ),
        ("finish c0 u0 = u0\n fold c0 s1 = u0", StepFault::FoldOfFinished { source_index: 0 }),
        ("recv c0 s0 <- 1", StepFault::NeverSent { lane: 1 }),
        ("send u0 -> 1\n recv c0 s0 <- 1\n recv c0 s0 <- 1", StepFault::NeverSent { lane: 1 }),
        ("send u0 -> 1\n recv c1 s0 <- 1", StepFault::WrongMessageChunk { lane: 1, actual: 0, expected: 1 }),
        ("send u0 -> 1\n recv c0 s1 <- 1", form),
        ("send u0 -> 1\n fold c0 s1 = @1:acc", form),
    ];
    for (own, fault) in cases {
        let reducer = if own.contains("->") { "slots plain\n recv c0 s0 <- 0\n send s0 -> 0" } else { "" };
        let text = format!(
            "schedule workers=1 reducers=1 cut=even:2\nrank 0\nslots plain acc\n{own}\nrank 1\n{reducer}"
        );
        let step = own.lines().count() as u32 - 1;
        assert_eq!(prove(SUM, &text).unwrap_err(), VerifyError::Step { rank: 0, step, fault }, "{own}");
    }
}

#[test]
fn collectives_that_move_do_not_fold() {
    let collective = Collective::Broadcast { root: 0 };
    let fault = StepFault::FoldUnasked { collective };
    assert_eq!(fault_of_rank_0(collective, "fold c0 s1 = u0"), (0, fault));
}

#[test]
fn only_outputs_are_written() {
    let collective = Collective::Reduce { root: 1 };
    let own = "recv c0 u0 <- 1";
    assert_eq!(fault_of_rank_0(collective, own), (0, StepFault::NotAnOutput { chunk: 0 }));
    let given = with_rank_0("copy u1 = u0").replace("even:2", "given:2");
    let fault = StepFault::NotAnOutput { chunk: 1 };
    let error = prove(Collective::ReduceScatter, &given).unwrap_err();
    assert_eq!(error, VerifyError::Step { rank: 0, step: 0, fault });
}

#[test]
fn inputs_exist_only_where_the_collective_says() {
    let text = "schedule workers=2 reducers=0 cut=given:2
        rank 0
            send u1 -> 1
        rank 1
            recv c1 u1 <- 0";
    let fault = StepFault::Uninitialised { place: Place::User(1) };
    let error = prove(Collective::AllGather, text).unwrap_err();
    assert_eq!(error, VerifyError::Step { rank: 0, step: 0, fault });
}

#[test]
fn the_collective_must_fit() {
    let text = "schedule workers=1 reducers=0 cut=even:1\nrank 0";
    let root = Collective::Broadcast { root: 1 };
    assert_eq!(prove(root, text).unwrap_err(), VerifyError::Root { collective: root, workers: 1 });
    let cut = Schedule::parse(text).unwrap().cut().clone();
    let collective = Collective::AllGather;
    assert_eq!(prove(collective, text).unwrap_err(), VerifyError::Cut { collective, cut, workers: 1 });
    let error = verify(Schedule::parse(text).unwrap(), SUM, &Group::of_size(2)).unwrap_err();
    assert_eq!(error, VerifyError::Members { schedule: 1, group: 2 });
}

#[test]
fn too_large_is_said_before_memory_is_gone() {
    let huge =
        || Schedule::generated(1, u32::MAX - 1, crate::schedule::Cut::Even { chunks: 1 }, |_| unreachable!());
    let error = verify(huge(), SUM, &Group::of_size(1)).unwrap_err();
    assert_eq!(error, VerifyError::TooLarge { what: "ranks".into() });
    let cut = crate::schedule::Cut::Even { chunks: u32::MAX };
    let wide = Schedule::generated(1, 0, cut, |_| ProgramBuilder::new().build());
    let error = verify(wide, SUM, &Group::of_size(1)).unwrap_err();
    assert_eq!(error, VerifyError::TooLarge { what: "places".into() });
}

#[test]
fn a_message_must_be_received() {
    let own = "send u0 -> 1\n send u1 -> 1\n recv c0 s0 <- 1\n finish c0 u0 = u0 s0+";
    let error = prove(SUM, &with_rank_0(own)).unwrap_err();
    assert_eq!(error, VerifyError::Unreceived { rank: 0, step: 1, to: 1 });
}

/// An all-reduce of one worker beside what it and its reducers do.
fn with_reducers(reducers: u32, own: &str, others: &str) -> VerifyError {
    let text = format!(
        "schedule workers=1 reducers={reducers} cut=even:1\nrank 0\nslots acc acc\nfold c0 s0 = u0\n{own}\nfinish c0 u0 = u0\n{others}"
    );
    prove(SUM, &text).unwrap_err()
}

/// A reducer that is not told that all is done would wait for ever, and its workers with it.
#[test]
fn reducers_hear_that_all_are_done() {
    let receives = "slots acc\n recv c0 s0 <- 0";
    let unanswered = with_reducers(1, "send s0 -> 1", &format!("rank 1\n{receives}"));
    assert_eq!(unanswered, VerifyError::Unanswered { worker: 0, reducer: 1 });
    let passes_on = format!("rank 1\n{receives}\n send s0 -> 0 2\n rank 2\n slots acc\n recv c0 s0 <- 1");
    let between = with_reducers(2, "send s0 -> 1\n recv c0 s1 <- 1", &passes_on);
    assert_eq!(between, VerifyError::BetweenReducers { reducer: 1, to: 2 });
    // That others are answered is not enough.
    let own = "send u0 -> 1\n recv c0 s0 <- 1\n finish c0 u0 = u0 s0+\n send u0 -> 2";
    let text = with_rank_0(own).replace("even:2", "even:1") + "slots plain\n recv c0 s0 <- 0";
    assert_eq!(prove(SUM, &text).unwrap_err(), VerifyError::Unanswered { worker: 0, reducer: 2 });
    assert!(
        prove(
            SUM,
            &(text.replace("send u0 -> 2", "send u0 -> 2\n recv c0 s1 <- 2").replace("acc", "plain")
                + "\n send s0 -> 0")
        )
        .is_ok()
    );
}

/// Each folds into the buffer that it sends from before the other has taken the message.
#[test]
fn folding_over_what_is_being_sent_is_a_deadlock() {
    let both = "send u0 -> X\n finish c0 u0 = u0 @X:plain+";
    let text = format!(
        "schedule workers=2 reducers=0 cut=even:1\nrank 0\n{}\nrank 1\n{}",
        both.replace('X', "1"),
        both.replace('X', "0")
    );
    let stuck = vec![Stuck { rank: 0, step: 0 }, Stuck { rank: 1, step: 0 }];
    let error = prove(SUM, &text).unwrap_err();
    assert_eq!(error, VerifyError::Deadlock { stuck });
    assert_eq!(error.to_string(), "deadlock: rank 0 cannot finish step 0, rank 1 cannot finish step 0");
}

/// One place more, and the same is right.
#[test]
fn folding_beside_what_is_being_sent_is_not() {
    let both = "slots plain\n send u0 -> X\n finish c0 s0 = u0 @X:plain+\n copy u0 = s0";
    let text = format!(
        "schedule workers=2 reducers=0 cut=even:1\nrank 0\n{}\nrank 1\n{}",
        both.replace('X', "1"),
        both.replace('X', "0")
    );
    assert!(prove(SUM, &text).unwrap().serial());
}

/// Each message has a place of its own, so a fold may take several of a lane: not so where a lane holds but one.
#[test]
fn a_fold_may_take_several_messages_of_a_lane() {
    let text = "schedule workers=2 reducers=0 cut=even:1
        rank 0
            finish c0 u0 = u0 @1:plain @1:plain++
            send u0 -> 1
        rank 1
            send u0 -> 0
            send u1 -> 0
            recv c0 u0 <- 0";
    let group = Group::with_keys(vec![0, 2, 3]).unwrap().with_inputs(&[1, 2]).unwrap();
    let prove = |text: &str| verify(Schedule::parse(text).unwrap(), SUM, &group);
    let proved = prove(text).unwrap();
    assert_eq!((proved.order(), proved.serial(), proved.restartable()), (Order::Fixed, false, true));
    let refused = |from: &str, to: &str| prove(&text.replace(from, to)).unwrap_err().to_string();
    // Inputs but the first are read only, and there are no others; what is missing or there twice is its holder's.
    let written = refused("recv c0 u0 <- 0", "recv c0 u1 <- 0");
    assert_eq!(written, "rank 1 step 2: this worker has no output at chunk 1");
    assert_eq!(refused("send u1", "send u2"), "rank 1 step 1: there is no chunk 2, only 2");
    let twice = refused("send u1", "send u0");
    assert_eq!(twice, "rank 0 ends with a wrong chunk 0: the input of rank 1 is in it twice");
    let missing = refused("send u1 -> 0", "").replace("never sends it", "");
    assert!(missing.contains("rank 0 step 0: receives from rank 1"), "{missing}");
    // If one of them waits for the fold, it is for ever.
    let waits =
        text.replace("send u1 -> 0\n", "\n").replace("recv c0 u0 <- 0", "recv c0 u0 <- 0\n send u1 -> 0");
    let waits = prove(
        &waits
            .replace("u0 <- 0", "s0 <- 0")
            .replace("rank 1", "rank 1\n slots plain")
            .replace("send u1", "copy u0 = s0\n send s0"),
    );
    assert!(matches!(waits, Err(VerifyError::Deadlock { .. })), "{waits:?}");
}

/// Receiving before sending is fine where nothing ties the two, but not if the program runs in order.
#[test]
fn program_order_does_not_tie_what_does_not_conflict() {
    let both = "slots plain\n recv c0 s0 <- X\n send u0 -> X\n finish c0 u0 = u0 s0+";
    let text = format!(
        "schedule workers=2 reducers=0 cut=even:1\nrank 0\n{}\nrank 1\n{}",
        both.replace('X', "1"),
        both.replace('X', "0")
    );
    assert!(!prove(SUM, &text).unwrap().serial());
}

fn wrong_result(own: &str) -> (u32, ResultFault) {
    match prove(SUM, &with_rank_0(own).replace("even:2", "even:1")) {
        Err(VerifyError::Result { rank, chunk: 0, fault }) => (rank, fault),
        other => panic!("{own}: {other:?}"),
    }
}

#[test]
fn results_must_be_the_fold_of_all() {
    let swap = "send u0 -> 1\n recv c0 s0 <- 1";
    assert_eq!(wrong_result(&format!("{swap}\n finish c0 u0 = u0")), (0, ResultFault::Missing { input: 1 }));
    assert_eq!(wrong_result(&format!("{swap}\n copy u0 = s0")), (0, ResultFault::Unfinished));
    let twice = format!("{swap}\n fold c0 s1 = u0 s0+\n finish c0 u0 = u0 s1+");
    assert_eq!(wrong_result(&twice), (0, ResultFault::Twice { input: 0 }));
}

#[test]
fn all_must_fold_alike() {
    let all = |shape: [&str; 3]| {
        let mut text = "schedule workers=3 reducers=0 cut=even:1\n".to_string();
        for (rank, others) in [(0, [1, 2]), (1, [0, 2]), (2, [0, 1])] {
            let [a, b] = others;
            text += &format!(
                "rank {rank}\nslots plain plain plain\nsend u0 -> {a} {b}\n\
                 recv c0 s{a} <- {a}\nrecv c0 s{b} <- {b}\ncopy s{rank} = u0\nfinish c0 u0 = {}\n",
                shape[rank]
            );
        }
        prove(SUM, &text)
    };
    let (left, right) = ("s0 s1+ s2+", "s0 s1 s2++");
    assert_eq!(all([left, "s2 s1 s0++", "s1 s0+ s2+"]).unwrap().order(), Order::Fixed);
    assert_eq!(all([right, "s2 s1+ s0+", right]).unwrap().order(), Order::Schedule);
    let fault = ResultFault::Disagreement { other: 0 };
    assert_eq!(all([left, left, right]).unwrap_err(), VerifyError::Result { rank: 2, chunk: 0, fault });
}

#[test]
fn moved_inputs_must_be_the_right_ones() {
    let text = "schedule workers=3 reducers=0 cut=given:3
        rank 0
            send u0 -> 1 2
            recv c1 u1 <- 1
            recv c2 u2 <- 2
        rank 1
            send u1 -> 0 2
            recv c0 u0 <- 0
            recv c2 u2 <- 2
        rank 2
            send u2 -> 0 1
            recv c0 u0 <- 0
            recv c1 u1 <- 1";
    let proved = prove(Collective::AllGather, text).unwrap();
    assert_eq!((proved.order(), proved.restartable()), (Order::Fixed, true));
    let unmoved = text.replace("recv c1 u1 <- 1", "").replace("send u1 -> 0 2", "");
    let fault = ResultFault::NotTheInput { input: 1 };
    let error = prove(Collective::AllGather, &unmoved).unwrap_err();
    assert_eq!(error, VerifyError::Result { rank: 0, chunk: 1, fault });
}

#[test]
fn overwriting_what_was_sent_is_not_restartable() {
    let slots = "fold c0 s1 = u0\n send s1 -> 2\n recv c0 s1 <- 2";
    let server = "slots acc\n recv c0 s0 <- 0\n send s0 -> 0";
    let own = format!("{slots}\n send u0 -> 1\n recv c0 s0 <- 1\n finish c0 u0 = u0 s0+");
    let text = with_rank_0(&own).replace("even:2", "even:1") + server;
    assert!(!prove(SUM, &text).unwrap().restartable());
    let text =
        text.replace("recv c0 s1 <- 2", "recv c0 s2 <- 2").replace("slots plain acc", "slots plain acc acc");
    assert!(prove(SUM, &text).unwrap().restartable());
    let twice = "copy s3 = u0\n copy u0 = s0\n finish c0 u0 = s3 s0+";
    let text = text.replacen("finish c0 u0 = u0 s0+", twice, 1);
    let text = text.replace("slots plain acc acc", "slots plain acc acc plain");
    assert!(!prove(SUM, &text).unwrap().restartable());
}

#[test]
fn errors_are_sentences() {
    let error = prove(SUM, &with_rank_0("send s2 -> 1")).unwrap_err();
    assert_eq!(error.to_string(), "rank 0 step 0: there is no slot 2");
    let stuck = (0..10).map(|rank| Stuck { rank, step: 7 }).collect();
    let text = VerifyError::Deadlock { stuck }.to_string();
    assert!(text.ends_with("rank 7 cannot finish step 7, and 2 more ranks"), "{text}");
}
