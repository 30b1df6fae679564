//! The basis of a plan: everything that it was made from. Ranks compare bases instead of names.

use super::codec::{ALGORITHM_BYTES, Malformed, Reader, Writer};
use crate::{
    collective::Collective,
    group::{FoldOrder, Group},
    wire::digest,
};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;

/// Something in which two sides differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its name.
    pub name: &'static str,
    /// This side's value.
    pub ours: String,
    /// The other side's.
    pub theirs: String,
}

/// The named values in which two lists of the same names differ.
pub(super) fn differences<const N: usize>(
    ours: [(&'static str, String); N],
    theirs: [(&'static str, String); N],
) -> Vec<Difference> {
    let pairs = ours.into_iter().zip(theirs);
    let differing = pairs.filter(|((_, ours), (_, theirs))| ours != theirs);
    differing.map(|((name, ours), (_, theirs))| Difference { name, ours, theirs }).collect()
}

/// A digest of named values: of all that [`differences`] compares.
pub(super) fn digest_of<const N: usize>(items: [(&'static str, String); N]) -> u64 {
    // No text that travels has a control character, so two lists never run together to the same text.
    let lines = items.map(|(name, value)| format!("{name}={value}\n"));
    digest(lines.concat().as_bytes())
}

/// A list in short: ranks compare it without sending it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Summary {
    /// How many different entries it has.
    pub kinds: u32,
    /// A digest of it.
    pub digest: u64,
}

impl Summary {
    /// A summary of a list in which only equality matters. Numbers are replaced by the order of their first appearance.
    pub fn of_places(numbers: &[u32]) -> Self {
        let mut seen = BTreeMap::new();
        let numbered = numbers.iter().map(|number| {
            let next = seen.len() as u32;
            *seen.entry(*number).or_insert(next)
        });
        let bytes: Vec<u8> = numbered.flat_map(u32::to_le_bytes).collect();
        Self { kinds: seen.len() as u32, digest: digest(&bytes) }
    }

    /// A summary of numbers as they are.
    pub fn of_numbers(numbers: &[u32]) -> Self {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        Self { kinds: numbers.iter().collect::<BTreeSet<_>>().len() as u32, digest: digest(&bytes) }
    }

    /// A summary of a group's fold keys, and of the number of keys of each member if any has several.
    pub fn of_keys(group: &Group) -> Self {
        let keys = group.keys();
        if !group.has_several() {
            return Self::of_numbers(keys);
        }
        let inputs = (0..group.size()).map(|rank| group.inputs_of(rank).len() as u32);
        let numbers: Vec<u32> = keys.iter().copied().chain(inputs).collect();
        Self { kinds: keys.len() as u32, ..Self::of_numbers(&numbers) }
    }

    /// A summary of texts without control characters.
    pub fn of_texts(texts: &[String]) -> Self {
        let kinds = texts.iter().collect::<BTreeSet<_>>().len() as u32;
        Self { kinds, digest: digest(texts.join("\n").as_bytes()) }
    }

    fn write(self, to: &mut Writer) {
        to.u32(self.kinds);
        to.u64(self.digest);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { kinds: from.u32()?, digest: from.u64()? })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (digest {:016x})", self.kinds, self.digest)
    }
}

/// The machines of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machines {
    /// The reducers.
    pub reducers: Summary,
    /// The host of each worker.
    pub hosts: Summary,
    /// The memory that each worker shares.
    pub memories: Summary,
    /// A digest of the topology, once one is known.
    pub topology: Option<u64>,
}

/// The limits by which a group's operations are cut into segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutBy {
    /// A digest of the constants of a build.
    pub constants: u64,
    /// The preferred bytes of a segment; 0 if there are none.
    pub segment: u64,
    /// The most staging memory that an operation gets, in bytes.
    pub staged: u64,
}

/// All inputs of a plan. Fingerprints carry its [digest](Self::digest).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Basis {
    /// The roster's epoch.
    pub epoch: u64,
    /// The algorithm with its parameters, as [`Algorithm`](crate::algorithm::Algorithm) writes it.
    pub algorithm: String,
    /// The collective with its root.
    pub collective: Collective,
    /// How many workers the group has.
    pub workers: u32,
    /// The source of fold keys.
    pub order: FoldOrder,
    /// The fold keys.
    pub keys: Summary,
    /// The divisor of an average.
    pub contributors: u32,
    /// The machines of the group.
    pub machines: Machines,
    /// How it is cut.
    pub cut: CutBy,
}

impl Basis {
    /// The digest that ranks compare. Every release must compute the same digest from the same basis.
    pub fn digest(&self) -> u64 {
        digest_of(self.items())
    }

    /// The differences to another one, in the order in which people ask for them.
    pub fn difference(&self, other: &Self) -> Vec<Difference> {
        differences(self.items(), other.items())
    }

    /// The value of a name that [`difference`](Self::difference) gives.
    pub fn value(&self, name: &str) -> Option<String> {
        self.items().into_iter().find(|(item, _)| *item == name).map(|(_, value)| value)
    }

    fn items(&self) -> [(&'static str, String); 14] {
        let Self { epoch, algorithm, collective, workers, order, keys, contributors, machines, cut } = self;
        let Machines { reducers, hosts, memories, topology } = machines;
        let CutBy { constants, segment, staged } = cut;
        [
            (ALGORITHM, algorithm.clone()),
            ("collective", collective.to_string()),
            ("workers", workers.to_string()),
            ("fold order", order.name().into()),
            ("fold keys", keys.to_string()),
            ("shards", contributors.to_string()),
            ("reducers", reducers.to_string()),
            ("hosts", hosts.to_string()),
            ("shared memories", memories.to_string()),
            ("slice bytes", segment.to_string()),
            ("staging bytes", staged.to_string()),
            ("cutting constants", format!("{constants:016x}")),
            ("topology", topology.map_or_else(|| "none".into(), |digest| format!("{digest:016x}"))),
            ("epoch", epoch.to_string()),
        ]
    }

    pub(super) fn write(&self, to: &mut Writer) {
        to.u64(self.epoch);
        to.text_to("an algorithm", ALGORITHM_BYTES, &self.algorithm);
        to.u8(self.collective.code());
        to.u32(self.collective.root().unwrap_or(0));
        to.u32(self.workers);
        to.u8(self.order.code());
        to.u32(self.contributors);
        let Machines { reducers, hosts, memories, topology } = &self.machines;
        [self.keys, *reducers, *hosts, *memories].into_iter().for_each(|list| list.write(to));
        to.option(topology.as_ref(), |to, digest| to.u64(*digest));
        let CutBy { constants, segment, staged } = self.cut;
        [constants, segment, staged].into_iter().for_each(|number| to.u64(number));
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (epoch, algorithm) = (from.u64()?, from.text_to(ALGORITHM_BYTES)?);
        let (code, root) = (from.u8()?, from.u32()?);
        let collective = Collective::from_code(code, root)
            .filter(|collective| collective.root().unwrap_or(0) == root)
            .ok_or(Malformed("a collective that is unknown"))?;
        let (workers, order, contributors) = (from.u32()?, from.fold_order()?, from.u32()?);
        let (keys, reducers) = (Summary::read(from)?, Summary::read(from)?);
        let (hosts, memories) = (Summary::read(from)?, Summary::read(from)?);
        let machines = Machines { reducers, hosts, memories, topology: from.option(Reader::u64)? };
        let cut = CutBy { constants: from.u64()?, segment: from.u64()?, staged: from.u64()? };
        Ok(Self { epoch, algorithm, collective, workers, order, keys, contributors, machines, cut })
    }
}

/// What [`Basis::difference`] calls the algorithm.
pub(super) const ALGORITHM: &str = "algorithm";

#[cfg(test)]
mod tests {
    use super::*;

    fn basis() -> Basis {
        Basis {
            epoch: 0,
            algorithm: "radix(4)".into(),
            collective: Collective::AllReduce,
            workers: 4,
            order: FoldOrder::Ranks,
            keys: Summary::of_numbers(&[0, 1, 2, 3]),
            contributors: 4,
            machines: Machines {
                reducers: Summary::of_texts(&[]),
                hosts: Summary::of_places(&[0, 0, 1, 1]),
                memories: Summary::of_places(&[0, 0, 1, 1]),
                topology: None,
            },
            cut: CutBy { constants: 7, segment: 0, staged: 1 << 20 },
        }
    }

    /// Each of them alone, with the name that it goes by.
    type Change = fn(&mut Basis);
    const CHANGES: [(&str, Change); 14] = [
        ("algorithm", |basis| basis.algorithm = "radix(2)".into()),
        ("collective", |basis| basis.collective = Collective::Broadcast { root: 3 }),
        ("workers", |basis| basis.workers = 5),
        ("fold order", |basis| basis.order = FoldOrder::Hosts),
        ("fold keys", |basis| basis.keys = Summary::of_numbers(&[0, 1, 4, 5])),
        ("shards", |basis| basis.contributors = 8),
        ("reducers", |basis| basis.machines.reducers = Summary::of_texts(&["a:1".into()])),
        ("hosts", |basis| basis.machines.hosts = Summary::of_places(&[0, 1, 1, 1])),
        ("shared memories", |basis| basis.machines.memories = Summary::of_places(&[0, 1, 2, 3])),
        ("slice bytes", |basis| basis.cut.segment = 4096),
        ("staging bytes", |basis| basis.cut.staged = 1 << 21),
        ("cutting constants", |basis| basis.cut.constants = 8),
        ("topology", |basis| basis.machines.topology = Some(0)),
        ("epoch", |basis| basis.epoch = 1),
    ];

    #[test]
    fn whatever_differs_is_named_and_shows_in_the_digest() {
        let ours = basis();
        assert_eq!(ours.difference(&ours.clone()), []);
        let mut digests = BTreeSet::from([ours.digest()]);
        for (name, change) in CHANGES {
            let mut theirs = basis();
            change(&mut theirs);
            let found = ours.difference(&theirs);
            let value = |basis: &Basis| basis.value(name).unwrap();
            let expected = Difference { name, ours: value(&ours), theirs: value(&theirs) };
            assert_eq!(found, [expected]);
            assert!(digests.insert(theirs.digest()), "{name}");
        }
    }

    /// Every release has to compute the same number. This one was computed by another program.
    #[test]
    fn the_digest_has_this_value() {
        assert_eq!(basis().digest(), 0x1d34_4199_709b_0e65);
    }

    /// Also where ranks differ only in whose the inputs are.
    #[test]
    fn who_has_how_many_inputs_shows_in_the_keys() {
        let group =
            |inputs: &[u32]| Group::with_keys(vec![0, 2, 3, 4, 6]).unwrap().with_inputs(inputs).unwrap();
        let all = [&[1; 5][..], &[2, 2, 1], &[2, 1, 2], &[1, 2, 2], &[4, 1], &[5]].map(group);
        let summaries = all.each_ref().map(Summary::of_keys);
        assert!(summaries.iter().all(|summary| summary.kinds == 5));
        assert_eq!(summaries.map(|summary| summary.digest).into_iter().collect::<BTreeSet<_>>().len(), 6);
        assert_eq!(summaries[0], Summary::of_numbers(&[0, 2, 3, 4, 6]));
    }

    #[test]
    fn lists_are_compared_in_short() {
        assert_eq!(Summary::of_places(&[7, 7, 2]), Summary::of_places(&[0, 0, 5]));
        assert_ne!(Summary::of_places(&[0, 1, 0]), Summary::of_places(&[0, 1, 1]));
        assert_ne!(Summary::of_numbers(&[7, 7, 2]), Summary::of_numbers(&[0, 0, 5]));
        assert_eq!(Summary::of_places(&[7, 7, 2]).kinds, 2);
        assert_ne!(
            Summary::of_texts(&["a".into(), "b".into()]),
            Summary::of_texts(&["b".into(), "a".into()])
        );
    }
}
