//! What each decoder of foreign bytes promises of any bytes: it reads or refuses them, and writes back what it has read.
//!
//! One function per decoder says so and fails if it is not so; it returns whether anything was read. Tests call it with damaged
//! words and texts, and the crate `fuzz` with what a fuzzer finds. Checksums are those of [`unchecked`], so that damage gets past
//! them.

use herringbone_core::{
    codec::{BLOCK, Codec, CodecCode},
    named::{Coordinator, StallSettings, decode_answers, decode_requests, encode_answers, encode_requests},
    plan::PlanRules,
    schedule::Schedule,
    session::{
        Role,
        control::Decoder,
        handshake::{Client, Expected, Hello, Identity, Policy, Purpose, Server, Versions},
        mailbox::{Record, is_length},
    },
    simulate::Calibration,
    topology::{LinkMatrix, Ports, json, read},
    wire::{FINGERPRINT_BYTES, Fingerprint, HEADER_BYTES, Header},
};
use std::time::Duration;

/// What a decoder promises of these bytes.
pub(crate) type Check = fn(&[u8]) -> bool;

/// All decoders.
pub(crate) const TARGETS: [(&str, Check); 16] = [
    ("answers", answers),
    ("calibration", calibration),
    ("client", client),
    ("coded", coded),
    ("control", control),
    ("fingerprint", fingerprint),
    ("header", header),
    ("json", json),
    ("links", links),
    ("ports", ports),
    ("record", record),
    ("requests", requests),
    ("rules", rules),
    ("schedule", schedule),
    ("server", server),
    ("topology", topology),
];

/// Of all bytes the same.
pub(crate) fn unchecked(_: &[u8]) -> u32 {
    0
}

/// A message on a control connection, without its prefix.
fn control(body: &[u8]) -> bool {
    let stream = [&(body.len() as u32).to_le_bytes()[..], &[0; 8], body].concat();
    // Without a prefix of ours they are bytes of any kind.
    for (bytes, is_whole) in [(body, false), (&stream, true)] {
        let mut decoder = Decoder::new(unchecked);
        decoder.push(bytes);
        match decoder.next_message() {
            Ok(Some(message)) if is_whole => {
                assert_eq!(message.encode(unchecked).as_ref(), Ok(&stream), "{message:?}");
                return true;
            }
            Ok(_) | Err(_) => {}
        }
    }
    false
}

/// The head of a frame on a data connection.
fn header(bytes: &[u8]) -> bool {
    let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else { return false };
    let read = Header::decode(bytes, unchecked);
    read.is_ok_and(|header| {
        assert_eq!(header.encode(unchecked), *bytes);
        true
    })
}

/// What a call is, as it goes with its first frame.
fn fingerprint(bytes: &[u8]) -> bool {
    let Some(bytes) = bytes.first_chunk::<FINGERPRINT_BYTES>() else { return false };
    let read = Fingerprint::decode(bytes, unchecked);
    read.is_ok_and(|fingerprint| {
        assert_eq!(fingerprint.encode(unchecked), *bytes);
        !fingerprint.to_string().is_empty()
    })
}

const TOKEN: &[u8] = b"a token";
const VERSIONS: Versions = Versions { min: 1, max: 3 };

pub(crate) fn worker(rank: u32) -> Identity {
    Identity { role: Role::Worker, job: 7, rank, world: 4, incarnation: 70 + u64::from(rank) }
}

/// Rank 2, which calls rank 1.
pub(crate) fn caller() -> Client {
    let expected = Expected { role: Role::Worker, rank: Some(1), incarnation: Some(71) };
    Client::new(
        Hello { identity: worker(2), purpose: Purpose::Data, versions: VERSIONS },
        expected,
        TOKEN,
        [1; 32],
    )
}

/// Rank 1, which is called.
pub(crate) fn called() -> Server {
    Server::new(TOKEN, [2; 32], Policy { versions: VERSIONS, job: Some(7), world: Some(4) })
}

/// What a server says to who calls it.
fn client(bytes: &[u8]) -> bool {
    let mut client = caller();
    let _hello = client.transmit();
    client.receive(bytes).is_ok_and(|received| {
        assert!(received.consumed <= bytes.len());
        received.done.is_some_and(|established| {
            assert_eq!(established.other, worker(1));
            true
        })
    })
}

/// What a caller says to a server.
fn server(bytes: &[u8]) -> bool {
    let mut server = called();
    let is_in = server.receive(bytes).is_ok_and(|received| {
        assert!(received.consumed <= bytes.len());
        received.done.is_some_and(|claim| {
            assert_eq!(claim.hello().identity, worker(2));
            true
        })
    });
    let _answer = server.transmit();
    is_in
}

/// A record of a message between two ranks.
fn record(bytes: &[u8]) -> bool {
    if !is_length(bytes.len()) {
        return false;
    }
    Record::decode(bytes).is_ok_and(|record| {
        assert_eq!(Record::decode(&record.encode()), Ok(record));
        true
    })
}

/// What a rank asks for, of named operations.
fn requests(bytes: &[u8]) -> bool {
    let stall = StallSettings { warning: Duration::ZERO, shutdown: Duration::ZERO };
    let mut coordinator = Coordinator::new(2, stall);
    let heard = [0, 1].map(|rank| coordinator.receive(rank, bytes, Duration::ZERO).is_ok());
    coordinator.answer();
    let read = decode_requests(bytes);
    assert_eq!([read.is_ok(); 2], heard);
    read.is_ok_and(|requests| {
        let written = encode_requests(&requests);
        assert_eq!(decode_requests(&written).as_ref(), Ok(&requests));
        !requests.is_empty()
    })
}

/// What all ranks are told, of named operations.
fn answers(bytes: &[u8]) -> bool {
    decode_answers(bytes).is_ok_and(|answers| {
        let written = encode_answers(&answers);
        assert_eq!(decode_answers(&written).as_ref(), Ok(&answers));
        !answers.is_empty()
    })
}

/// A block of coded elements, after its codec and how many elements it has.
fn coded(bytes: &[u8]) -> bool {
    let Some((head, block)) = bytes.split_first_chunk::<10>() else { return false };
    let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let Some(codec) = Codec::from_code(CodecCode { number: number(0), parameter: number(4) }) else {
        return false;
    };
    let elements = usize::from(u16::from_le_bytes([head[8], head[9]])) % (BLOCK + 1);
    let mut values = vec![0.0; elements];
    let decoded = codec.decode(block, &mut values);
    assert_eq!(codec.check(block, elements).is_ok(), decoded == Ok(block.len()));
    let Ok(taken) = decoded else { return false };
    assert!(taken <= codec.bound(elements));
    let mut again = vec![1.0; elements];
    assert_eq!(codec.decode(&block[..taken], &mut again), Ok(taken), "what follows a block does not count");
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&again), bits(&values));
    elements > 0
}

/// What machines cost, in a file.
fn calibration(bytes: &[u8]) -> bool {
    Calibration::parse(&String::from_utf8_lossy(bytes)).is_ok_and(|calibration| {
        assert_eq!(Calibration::parse(&calibration.to_string()), Ok(calibration));
        true
    })
}

/// Which algorithm is taken for which sizes, in a setting.
fn rules(bytes: &[u8]) -> bool {
    PlanRules::parse(&String::from_utf8_lossy(bytes)).is_ok_and(|rules| {
        let texts = rules.texts();
        assert_eq!(PlanRules::parse(&texts.join(",")).map(|rules| rules.texts()), Ok(texts));
        !rules.is_empty()
    })
}

/// A schedule in a file.
fn schedule(bytes: &[u8]) -> bool {
    Schedule::parse(&String::from_utf8_lossy(bytes)).is_ok_and(|schedule| {
        let text = schedule.to_string();
        assert_eq!(Schedule::parse(&text).map(|schedule| schedule.to_string()), Ok(text));
        true
    })
}

/// The links between ranks, as processes tell each other.
fn links(bytes: &[u8]) -> bool {
    LinkMatrix::from_bytes(bytes).is_some_and(|links| {
        assert_eq!(links.to_bytes(), bytes);
        true
    })
}

/// The ports of hosts that rank 0 tells the others.
fn ports(bytes: &[u8]) -> bool {
    Ports::from_bytes(bytes).is_some_and(|ports| {
        assert_eq!(ports.to_bytes(), bytes);
        true
    })
}

/// How a machine is linked, in a file.
fn topology(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    // Names of topologies in lists that have several.
    let read_by = |name| {
        read(&text, name).is_ok_and(|topology| {
            let again = read(&topology.to_json(), None).expect("what is written is read");
            assert_eq!(
                (again.nodes(), again.links(), again.ports(), again.sites()),
                (topology.nodes(), topology.links(), topology.ports(), topology.sites())
            );
            let _size = LinkMatrix::of(&topology).map(|links| links.size());
            true
        })
    };
    read_by(None) | read_by(Some("p3_16xlarge_p2p_matrix")) | read_by(Some("nvlink_and_pcie_4"))
}

/// What launchers say of a cluster.
fn json(bytes: &[u8]) -> bool {
    json::parse(&String::from_utf8_lossy(bytes)).is_ok()
}
