//! The order in which processes end.

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// The kernel puts processes that end in line. So of ranks that end shortly one after the other, the first is known, whenever
/// this process looks.
#[derive(Default)]
pub(super) struct Ends {
    poller: Option<OwnedFd>,
    watched: BTreeMap<usize, OwnedFd>,
}

impl Ends {
    /// Tells of a process by this number, if the kernel can: since Linux 5.3, and where a container allows it.
    pub(super) fn watch(&mut self, number: usize, process: Pid) {
        if self.poller.is_none() {
            self.poller = epoll::create(epoll::CreateFlags::CLOEXEC).ok();
        }
        if let (Some(poller), Ok(process)) = (&self.poller, pidfd_open(process, PidfdFlags::empty())) {
            let data = epoll::EventData::new_u64(number as u64);
            if epoll::add(poller, &process, data, epoll::EventFlags::IN).is_ok() {
                self.watched.insert(number, process);
            }
        }
    }

    /// Whether it will tell of the end of this one.
    pub(super) fn watches(&self, number: usize) -> bool {
        self.watched.contains_key(&number)
    }

    /// Which have ended since it was asked last, the first one first.
    pub(super) fn next(&mut self) -> Vec<usize> {
        let Some(poller) = &self.poller else { return Vec::new() };
        let mut ended = Vec::with_capacity(self.watched.len().max(1));
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events: Vec<epoll::Event> = Vec::with_capacity(ended.capacity());
        // An interrupted look finds nothing, and the next one all.
        let _looked = epoll::wait(poller, spare_capacity(&mut events), Some(&at_once));
        for event in events {
            let number = event.data.u64() as usize;
            if self.watched.remove(&number).is_some() {
                ended.push(number);
            }
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    #[test]
    fn the_first_to_end_is_told_first_whatever_its_number() {
        let start = |_| Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let mut processes: Vec<Child> = (0..5).map(start).collect();
        let mut ends = Ends::default();
        processes
            .iter()
            .enumerate()
            .for_each(|(number, process)| ends.watch(number, Pid::from_child(process)));
        assert!((0..5).all(|number| ends.watches(number)) && ends.next().is_empty());
        let order = [3, 0, 4, 2, 1];
        for number in order {
            processes[number].kill().unwrap();
            processes[number].wait().unwrap();
        }
        assert_eq!(ends.next(), order);
        assert!(ends.next().is_empty() && !ends.watches(3));
    }
}
