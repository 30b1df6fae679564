//! What ranks that meet through a store write there: never a token that is set.

use crate::world::{Over, TOKEN, Watchdog, check_sums, each};
use herringbone::{Communicator, Config, Error, ErrorKind, Rendezvous, Store, StoreError};
use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

/// A store that threads share, and that anybody can look into.
#[derive(Default)]
struct Open {
    values: Mutex<BTreeMap<String, Vec<u8>>>,
    changed: Condvar,
}

impl Store for Open {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.values.lock().unwrap().insert(key.to_owned(), value.to_vec());
        self.changed.notify_all();
        Ok(())
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, StoreError> {
        let values = self.values.lock().unwrap();
        let absent = |values: &mut BTreeMap<_, _>| !values.contains_key(key);
        let (values, _) = self.changed.wait_timeout_while(values, timeout, absent).unwrap();
        values.get(key).cloned().ok_or(StoreError::Timeout)
    }
}

impl Open {
    /// All that is in it.
    fn text(&self) -> String {
        let values = self.values.lock().unwrap();
        values.iter().map(|(key, value)| format!("{key}: {}\n", String::from_utf8_lossy(value))).collect()
    }
}

/// What becomes of ranks with these tokens, and what they have left in their store.
fn meet<const RANKS: usize>(tokens: [Option<&str>; RANKS]) -> (Vec<Result<(), Error>>, String) {
    let _watchdog = Watchdog::over("a world that meets in a store");
    let store = Arc::new(Open::default());
    let outcomes = each(RANKS as u32, |rank| {
        let place = Rendezvous::Store { store: store.clone(), host: None };
        let config = Over::Tcp.set(Config::new(rank, RANKS as u32, place)).timeout(Duration::from_secs(2));
        let config = tokens[rank as usize].map_or(config.clone(), |token| config.token(token));
        Communicator::connect(config).map(|comm| check_sums(&comm))
    });
    (outcomes, store.text())
}

#[test]
fn a_token_that_is_set_is_not_written() {
    let (outcomes, left) = meet([Some(TOKEN); 3]);
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert!(left.contains("127.0.0.1:") && !left.contains(TOKEN), "{left}");
}

#[test]
fn where_no_token_is_set_each_job_has_a_key_of_its_own() {
    let keys = [(), ()].map(|()| {
        let (outcomes, left) = meet([None; 2]);
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        left.lines().last().unwrap().to_owned()
    });
    assert!(keys.iter().all(|key| key.len() > 64) && keys[0] != keys[1], "{keys:?}");
}

#[test]
fn a_token_that_not_all_ranks_have_is_an_error_that_says_so() {
    let cases = [
        ([Some(TOKEN), None], "rank 0 has a token, and this rank has none"),
        ([None, Some(TOKEN)], "this rank has a token, and rank 0 has none"),
    ];
    for (tokens, problem) in cases {
        let (outcomes, left) = meet(tokens);
        let error = outcomes[1].as_ref().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Auth { .. }), "{error}");
        assert!(error.to_string().contains(problem), "{error}");
        assert!(error.to_string().contains("HERRINGBONE_TOKEN_FILE"), "{error}");
        assert!(!left.contains(TOKEN), "{left}");
    }
}
