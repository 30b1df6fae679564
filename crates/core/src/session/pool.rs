//! The hub decides which reducers a job uses: all that answer. It calls a lost reducer again, with longer and longer pauses.
//!
//! A reducer is known by its address. The job uses it from its first answer until a worker loses it. If it answers again, it joins
//! as another [member](MemberId); its earlier operations are over by then, on all workers. The pauses grow because each change of
//! reducers makes all workers pause.

use super::membership::MemberId;
use alloc::{collections::BTreeMap, string::String, vec::Vec};
use core::time::Duration;

/// How long after its loss a reducer is called for the first time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause after a loss.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How often a reducer that does not answer is called.
const CALL_AGAIN: Duration = Duration::from_secs(1);
/// After this time in use, the earlier losses of a reducer are forgotten.
const PROVEN: Duration = Duration::from_secs(60);
/// How many reducers that nobody has named in the settings are remembered.
const UNNAMED: usize = 4_096;

/// The reducers that a job uses, and the reducers for which it waits.
#[derive(Debug, Default)]
pub struct Pool {
    reducers: BTreeMap<String, Reducer>,
}

#[derive(Debug)]
struct Reducer {
    /// Whether the settings name it: then it is called. Any other calls by itself.
    is_named: bool,
    state: State,
    /// How often it was lost.
    losses: u32,
    /// Its life, once it has answered.
    life: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is used, since then.
    Used { as_member: MemberId, since: Duration },
    /// It is not used before then.
    Away { until: Duration },
    /// It was called, and has not answered.
    Called,
}

impl Pool {
    /// The hub's settings name a reducer, which takes part from the beginning as a member, or does not answer yet.
    pub fn name(&mut self, address: String, member: Option<MemberId>, now: Duration) {
        let state = match member {
            Some(as_member) => State::Used { as_member, since: now },
            None => State::Away { until: now + CALL_AGAIN },
        };
        self.reducers.insert(address, Reducer { is_named: true, state, losses: 0, life: None });
    }

    /// The reducers to call now: each is waited for until it [is there](Self::there) or [is not](Self::not_there).
    pub fn due(&mut self, now: Duration) -> Vec<String> {
        let is_due = |reducer: &Reducer| {
            reducer.is_named && matches!(reducer.state, State::Away { until } if until <= now)
        };
        let due = self.reducers.iter_mut().filter(|(_, reducer)| is_due(reducer));
        due.map(|(address, reducer)| {
            reducer.state = State::Called;
            address.clone()
        })
        .collect()
    }

    /// A reducer that was called has not answered.
    pub fn not_there(&mut self, address: &str, now: Duration) {
        if let Some(reducer) = self.reducers.get_mut(address).filter(|of| of.state == State::Called) {
            reducer.state = State::Away { until: now + CALL_AGAIN };
        }
    }

    /// A reducer has answered, or called by itself, in a life of its own. Returns whether it is to become a member, which it
    /// [is](Self::is_used) then.
    pub fn there(&mut self, address: &str, life: u64, now: Duration) -> bool {
        let same = |of: &Reducer| of.life == Some(life) && matches!(of.state, State::Used { .. });
        if self.reducers.values().any(same) {
            // One process, which is known by two addresses.
            self.not_there(address, now);
            return false;
        }
        let unnamed = self.reducers.values().filter(|reducer| !reducer.is_named).count();
        match self.reducers.get_mut(address) {
            Some(reducer) => match reducer.state {
                State::Used { .. } => {
                    // The first to say which life it is.
                    reducer.life.get_or_insert(life);
                    false
                }
                State::Away { until } => until <= now,
                State::Called => true,
            },
            None if unnamed >= UNNAMED => false,
            None => {
                let state = State::Away { until: now };
                let reducer = Reducer { is_named: false, state, losses: 0, life: Some(life) };
                self.reducers.insert(address.into(), reducer);
                true
            }
        }
    }

    /// A reducer has become a member.
    pub fn is_used(&mut self, address: &str, life: u64, as_member: MemberId, now: Duration) {
        if let Some(reducer) = self.reducers.get_mut(address) {
            (reducer.state, reducer.life) = (State::Used { as_member, since: now }, Some(life));
        }
    }

    /// Some worker has lost a reducer that was a member, so it is used no more. Returns whether it was used as that.
    pub fn lost(&mut self, address: &str, member: MemberId, now: Duration) -> bool {
        let Some(reducer) = self.reducers.get_mut(address) else { return false };
        let State::Used { as_member, since } = reducer.state else { return false };
        if as_member != member {
            return false;
        }
        if now.saturating_sub(since) >= PROVEN {
            reducer.losses = 0;
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << reducer.losses.min(16)).min(LONGEST_PAUSE);
        reducer.losses += 1;
        reducer.state = State::Away { until: now + pause };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn member(number: u32) -> MemberId {
        MemberId::new(number)
    }

    #[test]
    fn who_does_not_answer_is_called_until_it_does() {
        let mut pool = Pool::default();
        pool.name("a:1".into(), Some(member(4)), Duration::ZERO);
        pool.name("b:1".into(), None, Duration::ZERO);
        assert_eq!(pool.due(SECOND / 2), [""; 0]);
        assert_eq!(pool.due(SECOND), ["b:1"]);
        assert_eq!(pool.due(9 * SECOND), [""; 0], "once at a time");
        pool.not_there("b:1", 9 * SECOND);
        assert_eq!(pool.due(10 * SECOND), ["b:1"]);
        assert!(pool.there("b:1", 77, 10 * SECOND));
        pool.is_used("b:1", 77, member(5), 10 * SECOND);
        assert!(!pool.there("b:1", 77, 11 * SECOND), "it is used");
        assert_eq!(pool.due(99 * SECOND), [""; 0]);
    }

    #[test]
    fn a_reducer_that_is_lost_comes_back_after_longer_pauses() {
        let mut pool = Pool::default();
        pool.name("a:1".into(), Some(member(4)), Duration::ZERO);
        let (mut now, mut pauses) = (Duration::ZERO, Vec::new());
        for life in 0..10 {
            let used_as = member(4 + life as u32);
            assert!(!pool.lost("a:1", member(99), now), "somebody hears late of a former life");
            assert!(pool.lost("a:1", used_as, now));
            assert!(!pool.lost("a:1", used_as, now), "several workers lose it at once");
            let began = now;
            while pool.due(now).is_empty() {
                assert!(!pool.there("a:1", life, now), "not before its time");
                now += SECOND / 2;
            }
            pauses.push((now - began).as_millis());
            assert!(pool.there("a:1", life, now));
            pool.is_used("a:1", life, member(5 + life as u32), now);
        }
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000, 60_000]);
        pool.lost("a:1", member(14), now + PROVEN);
        assert_eq!(pool.due(now + PROVEN + FIRST_PAUSE), ["a:1"]);
    }

    #[test]
    fn reducers_that_nobody_named_call_by_themselves() {
        let mut pool = Pool::default();
        assert!(pool.there("c:1", 7, SECOND));
        pool.is_used("c:1", 7, member(3), SECOND);
        assert!(!pool.there("c:1", 7, 2 * SECOND), "it calls again and again");
        assert!(pool.lost("c:1", member(3), 3 * SECOND));
        assert_eq!(pool.due(99 * SECOND), [""; 0], "it is not called");
        assert!(pool.there("c:1", 8, 99 * SECOND), "it has been started again");
        for at in 0..2 * UNNAMED {
            pool.there(&alloc::format!("d:{at}"), at as u64, SECOND);
        }
        assert_eq!(pool.reducers.len(), UNNAMED);
    }

    #[test]
    fn one_process_at_two_addresses_is_used_once() {
        let mut pool = Pool::default();
        pool.name("host:1".into(), None, Duration::ZERO);
        assert!(pool.there("10.0.0.1:1", 7, SECOND));
        pool.is_used("10.0.0.1:1", 7, member(3), SECOND);
        assert_eq!(pool.due(SECOND), ["host:1"]);
        assert!(!pool.there("host:1", 7, SECOND));
        assert_eq!(pool.due(2 * SECOND), ["host:1"], "it may be another one some day");
        assert!(pool.there("host:1", 8, 2 * SECOND));
    }
}
