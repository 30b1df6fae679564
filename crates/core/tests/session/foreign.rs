//! Foreign bytes: words of each kind, damaged in any way, are read or refused, and never break their reader.
//!
//! `PROPTEST_CASES` says how many are tried for each decoder; `CORPUS` names a folder for the words that are damaged here, for
//! `make fuzz`. What broke a decoder once lies in `testdata/foreign`, and is tried each time.

mod targets;

use crate::{any_fingerprint, control::any_message, wire::any_header};
use herringbone_core::{
    codec::{Codec, CodecCode},
    element::{DType, ReduceOp},
    named::{
        NamedAnswer, NamedCall, NamedGroup, NamedKind, NamedRequest, NamedResponse, Tuning, encode_answers,
        encode_requests,
    },
    session::mailbox::{Envelope, Record},
    simulate::Calibration,
    topology::{LinkMatrix, Port, Ports, Sites},
};
use proptest::{collection::vec, prelude::*, sample::Index, strategy::ValueTree, test_runner::TestRunner};
use std::{env, fs, path::Path, time::Duration};
use targets::{TARGETS, called, caller, unchecked, worker};

/// How many of each kind of word that a strategy makes.
const DRAWN: usize = 100;

/// Words that a decoder reads, all of it.
fn words(name: &str) -> Vec<Vec<u8>> {
    match name {
        "answers" => vec![encode_answers(&answers())],
        "calibration" => vec![Calibration::DEFAULT.to_string().into_bytes()],
        "client" => vec![handshake().1],
        "coded" => coded(),
        "control" => {
            drawn(any_message()).map(|message| message.encode(unchecked).unwrap()[12..].to_vec()).collect()
        }
        "fingerprint" => drawn(any_fingerprint()).map(|call| call.encode(unchecked).to_vec()).collect(),
        "header" => drawn(any_header()).map(|header| header.encode(unchecked).to_vec()).collect(),
        "json" => files("topologies", ".json"),
        "links" => vec![LinkMatrix::uniform(3, 2.0).to_bytes()],
        "ports" => {
            let ports = Ports::uniform(3, Port { out: 5_000, into: 7_000 });
            let uplinks = vec![Port { out: 3_000, into: 0 }, Port { out: 1_000, into: 2_000 }];
            let sites = Sites::new(vec![0, 1, 1], uplinks).unwrap();
            vec![ports.to_bytes(), ports.with_sites(sites).unwrap().to_bytes()]
        }
        "record" => records(),
        "requests" => vec![encode_requests(&requests())],
        "rules" => vec![b"all_reduce:0-64K:doubling,64K-inf:hierarchical(radix(2;4,2),ring)".to_vec()],
        "schedule" => files("schedules", ".txt"),
        "server" => vec![handshake().0],
        "topology" => {
            [".txt", ".json", ".xml"].into_iter().flat_map(|ending| files("topologies", ending)).collect()
        }
        _ => panic!("words for {name}"),
    }
}

fn drawn<S: Strategy>(strategy: S) -> impl Iterator<Item = S::Value> {
    let mut runner = TestRunner::deterministic();
    (0..DRAWN).map(move |_| strategy.new_tree(&mut runner).unwrap().current())
}

/// The files of a folder of `testdata` whose names end so.
fn files(folder: &str, ending: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(folder);
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.to_str().is_some_and(|path| path.ends_with(ending)));
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// What a caller and a server say to each other.
fn handshake() -> (Vec<u8>, Vec<u8>) {
    let (mut caller, mut called) = (caller(), called());
    let hello = caller.transmit().unwrap();
    assert!(called.receive(&hello).unwrap().done.is_none());
    let challenge = called.transmit().unwrap();
    assert!(caller.receive(&challenge).unwrap().done.is_none());
    let proof = caller.transmit().unwrap();
    let claim = called.receive(&proof).unwrap().done.expect("a proof");
    let (welcome, _) = claim.accept(worker(1));
    ([hello, proof].concat(), [challenge, welcome].concat())
}

fn call(kind: NamedKind) -> NamedCall {
    NamedCall {
        kind,
        dtype: DType::F32,
        op: ReduceOp::Sum,
        shape: vec![3, 4],
        root: 1,
        prescale: 0.5,
        postscale: f64::NAN,
        codec: Codec::Int8,
    }
}

fn requests() -> Vec<NamedRequest> {
    let group = NamedGroup { name: "a group".to_owned(), members: 2 };
    let request =
        |group| NamedRequest { name: "a".to_owned(), call: call(NamedKind::AllReduce), group, priority: -1 };
    vec![request(None), request(Some(group))]
}

fn answers() -> Vec<NamedAnswer> {
    let run = NamedResponse {
        name: "a".to_owned(),
        call: call(NamedKind::AllGather),
        sizes: vec![1, 2],
        priority: 3,
        group: Some("a group".to_owned()),
    };
    let tuned = Tuning { threshold: 5, cycle: Duration::from_millis(7) };
    let fail = NamedAnswer::Fail { name: "b".to_owned(), text: "it differs".to_owned() };
    vec![NamedAnswer::Run(run), fail, NamedAnswer::Joined { last: 1 }, NamedAnswer::Tuned(tuned)]
}

fn records() -> Vec<Vec<u8>> {
    let envelope = Envelope { tag: -1, dtype: DType::I32, count: 3 };
    let records = [
        Record::Announced { number: 1, envelope, carried: Some(&[7; 12]) },
        Record::Announced { number: 2, envelope, carried: None },
        Record::Taken { number: 3 },
        Record::Refused { number: 4, wanted: envelope },
        Record::Withdrawn { number: 5 },
    ];
    records.map(|record| record.encode()).to_vec()
}

fn coded() -> Vec<Vec<u8>> {
    let names = [
        "none",
        "bf16",
        "fp16",
        "int8",
        "onebit",
        "twobit:0.5",
        "sign",
        "topk:0.1",
        "randomk:0.1",
        "threshold:1",
        "exact",
    ];
    let values: Vec<f32> = (0..50).map(|at| (at * at - 600) as f32 / 7.0).collect();
    let block = |name: &str| {
        let codec: Codec = name.parse().unwrap();
        let CodecCode { number, parameter } = codec.code();
        let mut bytes =
            [&number.to_le_bytes()[..], &parameter.to_le_bytes(), &(values.len() as u16).to_le_bytes()]
                .concat();
        codec.encode(1, &values, &mut bytes);
        bytes
    };
    names.map(block).to_vec()
}

/// Something that happens to bytes: where, how far, what is done, and what comes instead.
type Damage = (Index, Index, u8, Vec<u8>);

fn damaged(mut bytes: Vec<u8>, damages: &[Damage]) -> Vec<u8> {
    for (first, second, how, noise) in damages {
        if bytes.is_empty() {
            break;
        }
        let (a, b) = (first.index(bytes.len()), second.index(bytes.len()));
        let (a, b) = (a.min(b), a.max(b));
        match how {
            0 => bytes.truncate(b),
            1 => drop(bytes.drain(a..b.min(a + 40))),
            2 => bytes.swap(a, b),
            3 => drop(bytes.splice(a..a, noise.iter().copied())),
            4 => drop(bytes.splice(a..b, noise.iter().copied())),
            5 => bytes[a] = noise.first().copied().unwrap_or(u8::MAX),
            6 => bytes[a] ^= 1 << (b % 8),
            _ => {
                let copied = bytes[a..b.min(a + 60)].to_vec();
                drop(bytes.splice(b..b, copied));
            }
        }
    }
    bytes
}

#[test]
fn damaged_bytes_do_no_harm() {
    for (name, check) in TARGETS {
        let words = words(name);
        let noise =
            prop_oneof![vec(any::<u8>(), 0..8), "[\\x20-\\x7e\\t\\n]{0,8}".prop_map(String::into_bytes)];
        let damage = (any::<Index>(), any::<Index>(), 0..8_u8, noise);
        let cases = (any::<Index>(), vec(damage, 1..6));
        let mut runner =
            TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() });
        let tried = runner.run(&cases, |(which, damages)| {
            check(&damaged(words[which.index(words.len())].clone(), &damages));
            Ok(())
        });
        tried.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// Else nothing would be damaged but what is refused anyway.
#[test]
fn undamaged_words_are_read() {
    for (name, check) in TARGETS {
        for (at, word) in words(name).into_iter().enumerate() {
            assert!(check(&word), "{name} {at}: {word:?}");
            keep(name, at, &word);
        }
    }
}

/// In the folder that `CORPUS` names, if it names one.
fn keep(name: &str, at: usize, word: &[u8]) {
    let Some(folder) = env::var_os("CORPUS") else { return };
    let folder = Path::new(&folder).join(name);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(format!("word-{at}")), word).unwrap();
}

#[test]
fn what_broke_a_decoder_once_does_so_no_more() {
    for (name, check) in TARGETS {
        for bytes in files(&format!("foreign/{name}"), "") {
            let _read = check(&bytes);
        }
    }
}
