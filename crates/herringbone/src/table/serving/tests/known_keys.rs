//! Lists of keys that a connection knows, and a client that sends what no worker sends.

use super::client::{TurnedClient, pull};
use crate::{
    core::table::{KeyForm, RowKeys, TableAnswer, TableError, TableRequest, ValueCodec},
    table::TableOptions,
};

fn start(memory_bytes: u64) -> TurnedClient {
    TurnedClient::start(&TableOptions { memory_bytes, ..TableOptions::default() })
}

#[test]
fn a_client_that_sends_numbers_as_no_worker_does_is_refused_and_the_server_goes_on() {
    let mut client = start(1 << 30);
    let table = client.open();
    let some = pull(table, 0..100);
    let malformed = |answer: TableAnswer, why: &str| match answer {
        TableAnswer::Refused(TableError::Malformed(what)) => assert!(what.contains(why), "{what}"),
        other => panic!("{other:?}"),
    };
    for number in [0, 1, u64::MAX] {
        malformed(client.ask(&some, KeyForm::Known(number), &[]), "stands for none");
    }
    for number in [1, u64::MAX] {
        malformed(client.ask(&some, KeyForm::Taught(number), &[]), "out of turn");
    }
    assert_eq!(client.used(), 0);
    // What is refused is known, too: keys of no row.
    let beyond = client.ask(&pull(table, 100_000..130_000), KeyForm::Taught(0), &[]);
    assert!(matches!(beyond, TableAnswer::Refused(TableError::RowKeys { first: 100_000, .. })), "{beyond:?}");
    let beyond = client.ask(&some, KeyForm::Known(0), &[]);
    assert!(matches!(beyond, TableAnswer::Refused(TableError::RowKeys { first: 100_000, .. })), "{beyond:?}");
    assert_eq!(client.ask(&some, KeyForm::Taught(1), &[]), TableAnswer::Rows);
    assert_eq!(client.ask(&some, KeyForm::Known(1), &[]), TableAnswer::Rows);
    // Copies get a push with all of its keys.
    let codec = ValueCodec::PLAIN;
    let keys = some.keys().unwrap().clone();
    let push = TableRequest::Push { table, step: 0, ends: false, codec, keys };
    malformed(client.ask(&push, KeyForm::Known(0), &[0; 120_000]), "do not fit one message");
    assert_eq!(client.ask(&push, KeyForm::Known(1), &[0; 400]), TableAnswer::Done);
    assert_eq!(client.ask(&some, KeyForm::Whole, &[]), TableAnswer::Rows);
}

#[test]
fn known_lists_count_as_memory_of_their_server_until_their_connection_ends() {
    let mut client = start(1 << 20);
    let table = client.open();
    for number in 0..20 {
        let keys = number * 1000..number * 1000 + 30_000;
        assert_eq!(client.ask(&pull(table, keys), KeyForm::Taught(number), &[]), TableAnswer::Rows);
    }
    // Eight lists, which is more than the server has for tables: rows are refused.
    assert_eq!(client.used(), 8 * (30_000 * 8 + 32));
    let (keys, codec) = (RowKeys::Run { first: 0, count: 1 }, ValueCodec::PLAIN);
    let push = TableRequest::Push { table, step: 0, ends: false, codec, keys };
    let full = TableAnswer::Refused(TableError::Full { limit: 1 << 20 });
    assert_eq!(client.ask(&push, KeyForm::Whole, &[0; 4]), full);
    client.call_again();
    assert_eq!(client.used(), 0);
}
