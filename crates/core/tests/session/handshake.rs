use herringbone_core::session::{
    Refusal, Role,
    handshake::{
        Client, Established, Expected, HandshakeError, Hello, Identity, Policy, Purpose, Server, Versions,
    },
};

pub(crate) const TOKEN: &[u8] = b"a token";
/// What the first release spoke: its messages are the same in all.
const VERSIONS: Versions = Versions { min: 1, max: 1 };

pub(crate) fn worker(rank: u32) -> Identity {
    Identity { role: Role::Worker, job: 0xabc, rank, world: 4, incarnation: 70 + u64::from(rank) }
}

pub(crate) fn hello() -> Hello {
    Hello { identity: worker(2), purpose: Purpose::Data, versions: VERSIONS }
}

pub(crate) fn expected() -> Expected {
    Expected { role: Role::Worker, rank: Some(1), incarnation: Some(71) }
}

pub(crate) fn policy() -> Policy {
    Policy { versions: VERSIONS, job: Some(0xabc), world: Some(4) }
}

pub(crate) fn client() -> Client {
    Client::new(hello(), expected(), TOKEN, [1; 32])
}

pub(crate) fn server() -> Server {
    Server::new(TOKEN, [2; 32], policy())
}

/// What each side came to, and all that was said.
pub(crate) struct Outcome {
    pub(crate) client: Result<Established, HandshakeError>,
    pub(crate) server: Result<Established, HandshakeError>,
    said: Vec<Vec<u8>>,
}

/// Runs both sides against each other; `own` is what the server says it is, `alter` sees every message on its way.
pub(crate) fn meet(
    mut client: Client,
    mut server: Server,
    own: Identity,
    alter: impl Fn(usize, &mut Vec<u8>),
) -> Outcome {
    let cut_off = || Err(HandshakeError::Malformed { reason: "cut off" });
    let mut outcome = Outcome { client: cut_off(), server: cut_off(), said: Vec::new() };
    let say = |said: &mut Vec<Vec<u8>>, mut bytes: Vec<u8>| {
        alter(said.len(), &mut bytes);
        said.push(bytes.clone());
        bytes
    };
    while let Some(bytes) = client.transmit() {
        let bytes = say(&mut outcome.said, bytes);
        let answer = match server.receive(&bytes) {
            Ok(received) => received.done.map(|claim| {
                let (welcome, established) = claim.accept(own);
                outcome.server = Ok(established);
                welcome
            }),
            Err(error) => {
                outcome.server = Err(error);
                None
            }
        };
        let Some(answer) = answer.or_else(|| server.transmit()) else { break };
        let answer = say(&mut outcome.said, answer);
        match client.receive(&answer) {
            Ok(received) => outcome.client = received.done.map_or_else(cut_off, Ok),
            Err(error) => outcome.client = Err(error),
        }
    }
    outcome
}

pub(crate) fn untouched(_: usize, _: &mut Vec<u8>) {}

#[test]
fn both_sides_know_each_other() {
    let outcome = meet(client(), server(), worker(1), untouched);
    for (end, other) in [(&outcome.client, worker(1)), (&outcome.server, worker(2))] {
        let Established { version, purpose, other: found, .. } = *end.as_ref().unwrap();
        assert_eq!((version, purpose, found), (1, Purpose::Data, other));
    }
    assert!(outcome.said.iter().all(|bytes| bytes.len() < 128), "the messages are small");
}

/// Every release has to say these bytes. They were computed by another program.
#[test]
fn a_handshake_has_these_bytes() {
    let expected = [
        "a848524201003e00010001000301bc0a0000000000000200000004000000480000000000000001010101010101010101\
         01010101010101010101010101010101010101010101",
        "a84852420200220001000202020202020202020202020202020202020202020202020202020202020202",
        "a8485242030020004246967a2058030b4e52647d14c8d310f16d7faa2077799cd0ce992ef32e4650",
        "a84852420400390001bc0a00000000000001000000040000004700000000000000617bc9a9b6e06fbd6e0b7ca98cdb51\
         6eaa6d30ba34875924719162feaa78cd83",
    ];
    let said = meet(client(), server(), worker(1), untouched).said;
    let hex = |bytes: &Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(said.iter().map(hex).collect::<Vec<_>>(), expected);
}

#[test]
fn an_empty_token_is_a_token() {
    let client = Client::new(hello(), expected(), b"", [1; 32]);
    let outcome = meet(client, Server::new(b"", [2; 32], policy()), worker(1), untouched);
    assert!(outcome.client.is_ok() && outcome.server.is_ok());
}

#[test]
fn a_wrong_token_is_refused_and_said_so() {
    for (ours, theirs) in [(TOKEN, &b"another"[..]), (TOKEN, b""), (b"", TOKEN), (b"a token ", TOKEN)] {
        let client = Client::new(hello(), expected(), ours, [1; 32]);
        let outcome = meet(client, Server::new(theirs, [2; 32], policy()), worker(1), untouched);
        assert_eq!(outcome.server, Err(HandshakeError::Refusing(Refusal::Token)));
        assert_eq!(outcome.client, Err(HandshakeError::Refused(Refusal::Token)));
    }
}

/// A server that lets everybody in but does not know the token: the Welcome of another conversation.
#[test]
fn a_server_must_prove_itself() {
    let recorded = meet(client(), server(), worker(1), untouched).said;
    let mut client = Client::new(hello(), expected(), TOKEN, [9; 32]);
    client.transmit().unwrap();
    assert_eq!(client.receive(&recorded[1]).unwrap().done, None);
    client.transmit().unwrap();
    assert_eq!(client.receive(&recorded[3]), Err(HandshakeError::Unproven));
}

#[test]
fn a_recorded_client_is_refused() {
    let recorded = meet(client(), server(), worker(1), untouched).said;
    let mut server = Server::new(TOKEN, [3; 32], policy());
    assert!(server.receive(&recorded[0]).unwrap().done.is_none());
    let error = server.receive(&recorded[2]).err();
    assert_eq!(error, Some(HandshakeError::Refusing(Refusal::Token)));
}

/// A server's own words come back: neither its Challenge nor its proof is a client's.
#[test]
fn a_reflection_is_refused() {
    let said = meet(client(), server(), worker(1), untouched).said;
    let mut reflected = server();
    reflected.receive(&said[0]).unwrap();
    let mut proof = said[2].clone();
    let welcome_proof = &said[3][said[3].len() - 32..];
    proof[8..].copy_from_slice(welcome_proof);
    assert_eq!(reflected.receive(&proof).err(), Some(HandshakeError::Refusing(Refusal::Token)));
    assert!(matches!(server().receive(&said[1]).err(), Some(HandshakeError::Malformed { .. })));
}

#[test]
fn no_byte_can_be_altered() {
    let said = meet(client(), server(), worker(1), untouched).said;
    assert_eq!(said.len(), 4);
    for (number, message) in said.iter().enumerate() {
        for at in 0..message.len() {
            for bit in [0, 7] {
                let outcome = meet(client(), server(), worker(1), |turn, bytes| {
                    if turn == number {
                        bytes[at] ^= 1 << bit;
                    }
                });
                assert!(outcome.client.is_err(), "message {number}, byte {at}, bit {bit}");
                assert!(outcome.server.is_err() || number == 3, "message {number}, byte {at}, bit {bit}");
            }
        }
    }
}

#[test]
fn the_newest_common_version_is_spoken() {
    let versions = |(min, max): (u16, u16)| Versions { min, max };
    for (ours, theirs, agreed) in [
        ((1, 1), (1, 3), Some(1)),
        ((2, 5), (3, 9), Some(5)),
        ((4, 4), (1, 4), Some(4)),
        ((1, 2), (3, 4), None),
        ((3, 4), (1, 2), None),
        ((5, 2), (1, 9), None),
    ] {
        let hello = Hello { versions: versions(ours), ..hello() };
        let server = Server::new(TOKEN, [2; 32], Policy { versions: versions(theirs), ..policy() });
        let outcome = meet(Client::new(hello, expected(), TOKEN, [1; 32]), server, worker(1), untouched);
        match agreed {
            Some(version) => {
                assert_eq!(outcome.client.unwrap().version, version);
                assert_eq!(outcome.server.unwrap().version, version);
            }
            None => {
                let refusal = Refusal::Version { ours: versions(theirs), theirs: versions(ours) };
                assert_eq!(outcome.client, Err(HandshakeError::Refused(refusal)));
            }
        }
    }
    let refusal = Refusal::Version { ours: versions((3, 4)), theirs: versions((1, 1)) };
    assert_eq!(
        refusal.to_string(),
        "no common protocol version: version 1 connected to versions 3 to 4; install the same release everywhere"
    );
}

#[test]
fn strangers_are_told_apart_at_once() {
    let http = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let tls = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    let ours_almost = b"\xa8HRC\x01\0\0\0";
    for bytes in [&http[..], &tls, ours_almost, &[0; 100], &[0xff; 2000], b"\xa8GET"] {
        let mut server = server();
        let error = server.receive(bytes).err();
        assert!(matches!(error, Some(HandshakeError::NotHerringbone(_))), "{bytes:?} gave {error:?}");
        assert_eq!(server.transmit(), None, "strangers get no answer");
        assert_eq!(server.receive(&[1, 2, 3]).unwrap().consumed, 0);
        let mut client = client();
        assert!(matches!(client.receive(bytes), Err(HandshakeError::NotHerringbone(_))));
    }
    let error = server().receive(http).err().unwrap();
    assert!(error.to_string().contains("it sent \"GET / HT\""), "{error}");
    assert!(server().receive(&http[..1]).is_err(), "the first byte is enough");
}

#[test]
fn at_most_a_kibibyte_is_awaited() {
    let mut server = server();
    let error = server.receive(b"\xa8HRB\x01\0\xf9\x03").err();
    assert_eq!(error, Some(HandshakeError::TooLong { length: 1017 }));
    let mut patient = self::server();
    patient.receive(b"\xa8HRB\x01\0\xf8\x03").unwrap();
    let received = patient.receive(&[0; 4000]);
    assert!(matches!(received, Err(HandshakeError::Malformed { .. })), "1016 zeros are no Hello");
    assert_eq!(patient.receive(&[0; 4000]).unwrap().consumed, 0);
}

#[test]
fn bytes_may_come_one_by_one_and_the_rest_is_left() {
    let (mut client, mut server) = (client(), server());
    let mut claim = None;
    for _ in 0..2 {
        for byte in client.transmit().unwrap() {
            assert!(claim.is_none());
            let received = server.receive(&[byte]).unwrap();
            assert_eq!(received.consumed, 1);
            claim = received.done;
        }
        for byte in server.transmit().unwrap_or_default() {
            assert_eq!(client.receive(&[byte]).unwrap().done, None);
        }
    }
    let (mut welcome, _) = claim.unwrap().accept(worker(1));
    let length = welcome.len();
    welcome.extend(b"what follows");
    for byte in &welcome[..length - 1] {
        assert_eq!(client.receive(&[*byte]).unwrap().done, None);
    }
    let received = client.receive(&welcome[length - 1..]).unwrap();
    assert_eq!((received.consumed, received.done.is_some()), (1, true));
    assert_eq!(client.receive(b"what follows").unwrap().consumed, 0);
}

/// A Hello together with what must come later.
#[test]
fn messages_out_of_turn_are_refused() {
    let said = meet(client(), server(), worker(1), untouched).said;
    let out_of_turn = |error: Option<HandshakeError>| matches!(error, Some(HandshakeError::Malformed { .. }));
    assert!(out_of_turn(server().receive(&said[2]).err()));
    let twice = [&said[0][..], &said[0]].concat();
    assert!(out_of_turn(server().receive(&twice).err()));
    let mut early = client();
    early.transmit();
    assert!(out_of_turn(early.receive(&said[3]).err()));
}

#[test]
fn the_policy_is_applied_after_the_proof() {
    let refused = |identity: Identity, purpose| {
        let client = Client::new(Hello { identity, purpose, ..hello() }, expected(), TOKEN, [1; 32]);
        match meet(client, server(), worker(1), untouched).client {
            Err(HandshakeError::Refused(refusal)) => refusal,
            other => panic!("{identity:?} got {other:?}"),
        }
    };
    let (data, own) = (Purpose::Data, worker(2));
    let job = Refusal::Job { ours: 0xabc, theirs: 0xdef };
    assert_eq!(refused(Identity { job: 0xdef, ..own }, data), job);
    assert_eq!(refused(Identity { job: 0, ..own }, data), Refusal::Job { ours: 0xabc, theirs: 0 });
    let world = Refusal::World { rank: 2, ours: 4, theirs: 8 };
    assert_eq!(refused(Identity { world: 8, ..own }, data), world);
    assert_eq!(refused(Identity { rank: 4, ..own }, data), Refusal::RankOutOfRange { rank: 4, world: 4 });

    let joining = Hello { identity: Identity { job: 0, ..own }, purpose: Purpose::Join, ..hello() };
    let client = Client::new(joining, expected(), TOKEN, [1; 32]);
    assert_eq!(meet(client, server(), worker(1), untouched).client.unwrap().other, worker(1));

    let wrong =
        Client::new(Hello { identity: Identity { job: 0xdef, ..own }, ..hello() }, expected(), b"?", [1; 32]);
    let outcome = meet(wrong, server(), worker(1), untouched);
    assert_eq!(outcome.client, Err(HandshakeError::Refused(Refusal::Token)), "strangers learn nothing");
}

#[test]
fn the_caller_may_refuse_with_its_own_reason() {
    let said = meet(client(), server(), worker(1), untouched).said;
    let mut server = server();
    server.receive(&said[0]).unwrap();
    let claim = server.receive(&said[2]).unwrap().done.unwrap();
    assert_eq!(claim.hello(), &hello());
    let refusal = Refusal::NoRoom { what: "connections".into(), limit: 64 };
    let mut client = client();
    client.receive(&said[1]).unwrap();
    assert_eq!(client.receive(&claim.refuse(&refusal)), Err(HandshakeError::Refused(refusal)));
}

/// A refusal fits the handshake whatever it says: what is too long is left out.
#[test]
fn long_refusals_are_cut() {
    let sent = |refusal: Refusal| {
        let said = meet(client(), server(), worker(1), untouched).said;
        let mut server = server();
        server.receive(&said[0]).unwrap();
        let bytes = server.receive(&said[2]).unwrap().done.unwrap().refuse(&refusal);
        let mut client = client();
        client.receive(&said[1]).unwrap();
        client.receive(&bytes).unwrap_err()
    };
    let name = || "ä".repeat(128);
    let long = || "ä".repeat(300);
    let setting = Refusal::Setting { rank: 2, name: long(), ours: long(), theirs: long() };
    let cut = Refusal::Setting { rank: 2, name: name(), ours: name(), theirs: name() };
    assert_eq!(sent(setting), HandshakeError::Refused(cut));
    let absent = sent(Refusal::Absent { missing: (0..4096).collect() });
    assert_eq!(absent, HandshakeError::Refused(Refusal::Absent { missing: (0..200).collect() }));
}

#[test]
fn the_client_notices_whom_it_reached() {
    let reached = |own: Identity| meet(client(), server(), own, untouched).client.unwrap_err();
    let error = reached(worker(3));
    assert_eq!(error, HandshakeError::WrongPeer { expected: expected(), found: worker(3) });
    assert_eq!(
        error.to_string(),
        "expected worker 1 at this address, found worker 3: check addresses and ports"
    );
    let reducer = Identity { role: Role::Reducer, ..worker(1) };
    assert!(matches!(reached(reducer), HandshakeError::WrongPeer { .. }));
    let restarted = Identity { incarnation: 5, ..worker(1) };
    let refusal = Refusal::Restarted { role: Role::Worker, rank: 1 };
    assert_eq!(reached(restarted), HandshakeError::Refusing(refusal));
    let other_job = Refusal::Job { ours: 0xabc, theirs: 1 };
    assert_eq!(reached(Identity { job: 1, ..worker(1) }), HandshakeError::Refusing(other_job));
}

#[test]
fn secrets_are_not_shown() {
    let said = meet(client(), server(), worker(1), untouched).said;
    let mut server = Server::new(b"sesame", [0xee; 32], policy());
    let client = Client::new(hello(), expected(), b"sesame", [0xdd; 32]);
    let shown = format!("{client:?} {server:?}");
    assert!(!shown.contains("sesame") && !shown.contains("115, 101, 115"), "{shown}");
    assert!(!shown.contains("238") && !shown.contains("221"), "{shown}");
    server.receive(&said[0]).unwrap();
    let shown = format!("{server:?} {}", server.receive(&said[2]).err().unwrap());
    assert!(!shown.contains("sesame") && !shown.contains("238"), "{shown}");
}

/// Who asks for a status knows neither the job nor who is there.
#[test]
fn who_only_asks_needs_the_token_alone() {
    let asks = |job| {
        let identity = Identity { role: Role::Worker, job, rank: 0, world: 1, incarnation: 0 };
        Hello { identity, purpose: Purpose::Status, versions: VERSIONS }
    };
    let reducer = Identity { role: Role::Reducer, ..worker(0) };
    for own in [worker(1), reducer] {
        for job in [0, own.job] {
            let client = Client::of_anyone(asks(job), TOKEN, [1; 32]);
            let outcome = meet(client, server(), own, untouched);
            assert_eq!(outcome.client.map(|established| established.other), Ok(own));
            assert_eq!(outcome.server.map(|established| established.purpose), Ok(Purpose::Status));
        }
    }
    let outcome = meet(Client::of_anyone(asks(7), TOKEN, [1; 32]), server(), worker(1), untouched);
    let refusal = Refusal::Job { ours: 0xabc, theirs: 7 };
    assert_eq!(outcome.client, Err(HandshakeError::Refused(refusal)));
    let outcome = meet(Client::of_anyone(asks(0), b"another", [1; 32]), server(), worker(1), untouched);
    assert_eq!(outcome.client, Err(HandshakeError::Refused(Refusal::Token)));
    let other = Hello { purpose: Purpose::Data, ..asks(0) };
    let outcome = meet(Client::of_anyone(other, TOKEN, [1; 32]), server(), worker(1), untouched);
    let refusal = Refusal::Job { ours: 0xabc, theirs: 0 };
    assert_eq!(
        outcome.client,
        Err(HandshakeError::Refused(refusal)),
        "no other purpose may leave out the job"
    );
}
