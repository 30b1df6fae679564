//! The engine's future tasks, with their times.

use crate::clock::Moment;
use std::collections::BTreeMap;

/// What a timer is for. Each has at most one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// Operations are looked through for those that have waited long, and reducers for those that have been silent.
    Operations,
    /// A group waits no longer for operations before a disputed one to end, or for a hub that is gone.
    Group(u32),
    /// What the connections of this process have carried is said, for the calls of a group.
    Ports(u32),
    /// Endpoints that have left are looked at: operations fail that still need one of which nothing more comes.
    Departures,
}

/// The times of all timers of an engine.
#[derive(Debug, Default)]
pub(super) struct Timers {
    due: BTreeMap<Timer, Moment>,
}

impl Timers {
    /// Sets a timer, instead of the time that it had.
    pub(super) fn set(&mut self, timer: Timer, at: Moment) {
        self.due.insert(timer, at);
    }

    /// Sets a timer, unless it has a time already.
    pub(super) fn ensure(&mut self, timer: Timer, at: Moment) {
        self.due.entry(timer).or_insert(at);
    }

    /// When the next timer is due.
    #[cfg(test)]
    pub(super) fn next(&self) -> Option<Moment> {
        self.due.values().min().copied()
    }

    /// Takes a timer that is due, the earliest first.
    pub(super) fn expire(&mut self, now: Moment) -> Option<Timer> {
        let (timer, _) =
            self.due.iter().filter(|(_, at)| **at <= now).min_by_key(|(timer, at)| (**at, **timer))?;
        let timer = *timer;
        self.due.remove(&timer);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(milliseconds: u64) -> Moment {
        Moment::default() + Duration::from_millis(milliseconds)
    }

    #[test]
    fn timers_expire_in_the_order_of_their_times() {
        let mut timers = Timers::default();
        timers.set(Timer::Group(3), at(30));
        timers.set(Timer::Operations, at(20));
        timers.ensure(Timer::Operations, at(5));
        timers.set(Timer::Group(1), at(10));
        assert_eq!((timers.next(), timers.expire(at(9))), (Some(at(10)), None));
        let expired: Vec<_> = std::iter::from_fn(|| timers.expire(at(25))).collect();
        assert_eq!(expired, [Timer::Group(1), Timer::Operations]);
        timers.set(Timer::Group(3), at(40));
        assert_eq!((timers.expire(at(39)), timers.expire(at(40))), (None, Some(Timer::Group(3))));
    }
}
