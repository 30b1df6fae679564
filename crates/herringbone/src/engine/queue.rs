//! Operations that have not started, in lines: one line for each group and class. Only the first of a line can start.

use super::footprints::Footprints;
use crate::execute::issue::{Identity, OpPlace, Queued};
use std::collections::{BTreeMap, VecDeque};

/// A group, and whether its operations are urgent.
pub(super) type Class = (u32, bool);

/// Operations that wait for links, memory or their turn. However many they are, it takes few steps to issue one or to find
/// the next that can start.
#[derive(Debug, Default)]
pub(super) struct OpQueue {
    /// Each in the order of the calls.
    lines: BTreeMap<Class, VecDeque<Queued>>,
    heads: Heads,
    footprints: Footprints,
}

impl OpQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.heads.0.is_empty()
    }

    /// All, those of a line one after the other.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Queued> {
        self.lines.values().flatten()
    }

    /// Those of a group.
    fn of(&self, group: u32) -> impl Iterator<Item = &VecDeque<Queued>> {
        self.lines.range((group, false)..=(group, true)).map(|(_, line)| line)
    }

    /// Whether there are any of a group.
    pub(super) fn has_any(&self, group: u32) -> bool {
        self.of(group).any(|line| !line.is_empty())
    }

    /// Whether an operation of a group is here.
    pub(super) fn has(&self, group: u32, sequence: u64) -> bool {
        self.of(group).any(|line| position(line, sequence).is_some())
    }

    /// The first operation of the line whose head comes first after a place, or of all, and what all that are here touch, if some
    /// were called before it.
    pub(super) fn head_after(
        &mut self,
        after: Option<OpPlace>,
    ) -> Option<(OpPlace, &mut Queued, Option<&Footprints>)> {
        let (place, class) = self.heads.after(after)?;
        Some((place, self.lines.get_mut(&class)?.front_mut()?, after.map(|_| &self.footprints)))
    }

    /// Adds an operation, behind those that were called before it.
    pub(super) fn push(&mut self, queued: Queued) {
        queued.footprint.iter().for_each(|footprint| self.footprints.insert(footprint));
        let (class, place) = (queued.class(), queued.place());
        let line = self.lines.entry(class).or_default();
        match line.back() {
            None => self.heads.insert(place, class),
            Some(last) if last.place() < place => {}
            Some(_) => return self.push_before(queued),
        }
        line.push_back(queued);
    }

    /// Adds an operation to a line that has some which were called after it.
    fn push_before(&mut self, queued: Queued) {
        let (class, place) = (queued.class(), queued.place());
        let Some(line) = self.lines.get_mut(&class) else { return };
        let at = line.partition_point(|earlier| earlier.place() < place);
        if at == 0 {
            line.front().into_iter().for_each(|first| self.heads.remove(first.place()));
            self.heads.insert(place, class);
        }
        line.insert(at, queued);
    }

    /// Takes out the first operation of a line.
    pub(super) fn pop(&mut self, class: Class) -> Option<Queued> {
        self.remove(class, 0)
    }

    /// Takes an operation out.
    pub(super) fn take(&mut self, id: &Identity) -> Option<Queued> {
        let class = (id.group, id.is_urgent());
        let line = self.lines.get(&class)?;
        let at = position(line, id.fingerprint.sequence).filter(|at| line[*at].id.is(id))?;
        self.remove(class, at)
    }

    fn remove(&mut self, class: Class, at: usize) -> Option<Queued> {
        let line = self.lines.get_mut(&class)?;
        let queued = if at == 0 { line.pop_front() } else { line.remove(at) }?;
        if at == 0 {
            self.heads.remove(queued.place());
            line.front().into_iter().for_each(|next| self.heads.insert(next.place(), class));
        }
        queued.footprint.iter().for_each(|footprint| self.footprints.remove(footprint));
        Some(queued)
    }

    /// Takes out all operations of a group for which this holds, in the order of their calls.
    pub(super) fn take_of(&mut self, group: u32, mut which: impl FnMut(&Queued) -> bool) -> Vec<Queued> {
        let mut taken: Vec<Queued> = Vec::new();
        for (class, line) in self.lines.range_mut((group, false)..=(group, true)) {
            line.front().into_iter().for_each(|first| self.heads.remove(first.place()));
            for queued in std::mem::take(line) {
                if which(&queued) { taken.push(queued) } else { line.push_back(queued) }
            }
            line.front().into_iter().for_each(|first| self.heads.insert(first.place(), *class));
        }
        taken
            .iter()
            .filter_map(|queued| queued.footprint.as_ref())
            .for_each(|one| self.footprints.remove(one));
        taken.sort_by_key(Queued::place);
        taken
    }

    /// Forgets the lines of a group that is over.
    pub(super) fn forget(&mut self, group: u32) {
        for urgent in [false, true] {
            if self.lines.get(&(group, urgent)).is_some_and(VecDeque::is_empty) {
                self.lines.remove(&(group, urgent));
            }
        }
    }
}

/// The first operation of each line, by their places. Most come last and go first.
#[derive(Debug, Default)]
struct Heads(VecDeque<(OpPlace, Class)>);

impl Heads {
    /// The first one after a place, or of all.
    fn after(&self, place: Option<OpPlace>) -> Option<(OpPlace, Class)> {
        let at = place.map_or(0, |place| self.0.partition_point(|(head, _)| *head <= place));
        self.0.get(at).copied()
    }

    fn insert(&mut self, place: OpPlace, class: Class) {
        if self.0.back().is_none_or(|(last, _)| *last < place) {
            return self.0.push_back((place, class));
        }
        let at = self.0.partition_point(|(head, _)| *head < place);
        self.0.insert(at, (place, class));
    }

    fn remove(&mut self, place: OpPlace) {
        if self.0.front().is_some_and(|(first, _)| *first == place) {
            self.0.pop_front();
        } else if let Ok(at) = self.0.binary_search_by_key(&place, |(head, _)| *head) {
            self.0.remove(at);
        }
    }
}

/// Where an operation is in its line: there they are by their numbers.
fn position(line: &VecDeque<Queued>, sequence: u64) -> Option<usize> {
    line.binary_search_by_key(&sequence, |queued| queued.id.fingerprint.sequence).ok()
}
