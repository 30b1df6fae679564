//! What binds the bytes after a handshake to their connection.

use crate::{
    crc32c,
    handshake::{TOKEN, client, expected, hello, meet, policy, server, untouched, worker},
};
use herringbone_core::session::{
    control::{ControlChannel, ControlError, Message},
    handshake::{Client, Identity, Key, Keys, Seals, Server},
};

/// The keys of both ends.
fn keys(client: Client, server: Server, own: Identity) -> [Keys; 2] {
    let outcome = meet(client, server, own, untouched);
    [outcome.client, outcome.server].map(|end| end.unwrap().keys)
}

/// The seals of the first messages.
fn seals(key: Key) -> Vec<u32> {
    let mut seals = Seals::new(key);
    let next = |_| {
        let present = seals.present();
        assert_eq!(present, seals.present(), "it changed before its message was over");
        seals.advance();
        present
    };
    (0..1000).map(next).collect()
}

#[test]
fn both_ends_have_the_same_keys_and_each_direction_its_own() {
    let [client, server] = keys(client(), server(), worker(1));
    assert_eq!((client.sending, client.receiving), (server.receiving, server.sending));
    assert_ne!(client.sending, client.receiving);
    assert_eq!(seals(client.sending), seals(server.receiving));
}

/// Every release has to compute the same numbers. These were computed by another program.
#[test]
fn seals_have_these_values() {
    let [client, _] = keys(client(), server(), worker(1));
    assert_eq!(seals(client.sending)[..3], SENT);
    assert_eq!(seals(client.receiving)[..3], RECEIVED);
}

const SENT: [u32; 3] = [0xd78f_ded0, 0x00f7_c009, 0xa7a0_96c8];
const RECEIVED: [u32; 3] = [0xb04a_9cba, 0x8828_5fca, 0xa066_faa4];

#[test]
fn another_nonce_token_or_party_gives_other_keys() {
    let of = |token: &[u8], nonces: [u8; 2], own: u32| {
        let client = Client::of_anyone(hello(), token, [nonces[0]; 32]);
        keys(client, Server::new(token, [nonces[1]; 32], policy()), worker(own))[0]
    };
    let first = of(TOKEN, [1, 2], 1);
    assert_eq!(first, of(TOKEN, [1, 2], 1));
    for other in [of(TOKEN, [3, 2], 1), of(TOKEN, [1, 3], 1), of(b"another", [1, 2], 1), of(TOKEN, [1, 2], 3)]
    {
        let all = [first.sending, first.receiving, other.sending, other.receiving];
        let seals = all.map(|key| seals(key)[0]);
        assert!((1..4).all(|at| !seals[..at].contains(&seals[at])), "{seals:?}");
    }
}

#[test]
fn each_message_has_another_seal_and_without_a_key_none_has_any() {
    let [client, _] = keys(client(), server(), worker(1));
    let mut all = seals(client.sending);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 1000);
    assert_eq!(seals(Key::default()), [0; 1000]);
    assert_eq!(format!("{client:?}"), "Keys { sending: Key, receiving: Key }");
}

/// Both ends of a control connection.
fn talking(client: Client) -> [ControlChannel; 2] {
    keys(client, server(), worker(1)).map(|keys| ControlChannel::new(crc32c, keys))
}

#[test]
fn control_messages_are_taken_once_in_turn_and_on_their_connection() {
    let hub_at = |address: &str| Message::Hub { address: address.to_owned() };
    let [mut ours, mut theirs] = talking(client());
    let [first, second] = ["a:1", "b:2"].map(|address| ours.encode(&hub_at(address)).unwrap());
    theirs.push(&[first.clone(), second.clone()].concat());
    assert_eq!(theirs.next_message(), Ok(Some(hub_at("a:1"))));
    assert_eq!(theirs.next_message(), Ok(Some(hub_at("b:2"))));
    assert_eq!(theirs.next_message(), Ok(None));
    let refused = |mut end: ControlChannel, good: usize, bytes: &[&Vec<u8>]| {
        bytes.iter().for_each(|bytes| end.push(bytes));
        (0..good).for_each(|_| assert!(end.next_message().unwrap().is_some()));
        assert!(matches!(end.next_message(), Err(ControlError::Checksum { .. })));
    };
    let [ours, theirs] = talking(client());
    refused(theirs, 1, &[&first, &first]);
    refused(ours, 0, &[&first]);
    let [_, theirs] = talking(client());
    refused(theirs, 0, &[&second, &first]);
    let [_, another] = talking(Client::new(hello(), expected(), TOKEN, [9; 32]));
    refused(another, 0, &[&first]);
}

#[test]
fn a_message_that_cannot_be_said_leaves_no_gap() {
    let [mut ours, mut theirs] = talking(client());
    assert!(ours.encode(&Message::Hub { address: "x".repeat(1000) }).is_err());
    theirs.push(&ours.encode(&Message::Bye).unwrap());
    assert_eq!(theirs.next_message(), Ok(Some(Message::Bye)));
}
