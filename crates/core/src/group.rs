//! The order of folds: a group's fold keys and its canonical tree.
//!
//! The **canonical tree** of a group is the binary trie of its members' fold keys: partial sums meet at the highest bit
//! in which their keys differ. It fixes the *shape* of every sum. The holder of a partial sum and the side that sends
//! are free, because a + b and b + a are the same bits here (see [`element`](crate::element)).

use crate::choice::choices;
use alloc::{borrow::Cow, collections::BTreeSet, vec, vec::Vec};
use core::ops::Range;

/// A position in an operation's roster: workers are `0..workers`, reducers follow.
pub type Rank = u32;

/// The members of an operation that have data, by the fold keys of their inputs: of one each, or of several.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// By input, in the order of members.
    keys: Vec<u32>,
    /// By member: where its inputs end. Empty if each has one.
    ends: Vec<u32>,
    contributors: u32,
}

choices! {
    "a fold order":
    /// The source of a group's fold keys.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum FoldOrder {
        /// Keys are ranks: a sum depends on the inputs, the ranks and their number, and on nothing else.
        #[default]
        Ranks = 0 => "ranks",
        /// Keys name the host, then the rank on it, so that any host is one node of the canonical tree: a sum depends on how many
        /// ranks each host has, too. It is that of [`Ranks`](Self::Ranks) where each has the same 1, 2, 4, 8, ... of them.
        Hosts = 1 => "hosts",
        /// Keys name the site, then the host, then the rank on it, so that any site is one node of the canonical tree, and each of its hosts
        /// is: a sum depends on which ranks are in which site, too.
        Sites = 2 => "sites",
    }
}

/// The reason why a fold order is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoldObstacle {
    /// A rank that others of its host are before, and another host's between. Keys that name hosts would not ascend.
    Host(Rank),
    /// The same of sites.
    Site(Rank),
    /// The sites of some ranks are unknown.
    NoSites,
}

impl FoldOrder {
    /// The reason why workers on these hosts and in these sites (one number for each) cannot have this order.
    /// [`Ranks`](Self::Ranks) has none, and only [`Sites`](Self::Sites) uses the sites.
    pub fn obstacle(self, hosts: &[u32], sites: &[u32]) -> Option<FoldObstacle> {
        match self {
            Self::Ranks => None,
            Self::Hosts => apart(hosts).map(FoldObstacle::Host),
            Self::Sites if sites.len() != hosts.len() => Some(FoldObstacle::NoSites),
            Self::Sites => {
                let of_sites = || apart(sites).map(FoldObstacle::Site);
                apart(hosts).map(FoldObstacle::Host).or_else(of_sites)
            }
        }
    }

    /// The group of the workers on these hosts, in these sites; by ranks, if there is an [obstacle](Self::obstacle).
    ///
    /// # Panics
    /// If there are no workers.
    pub fn group(self, hosts: &[u32], sites: &[u32]) -> Group {
        if self == Self::Ranks || self.obstacle(hosts, sites).is_some() {
            return Group::of_size(hosts.len() as u32);
        }
        let of_sites = match self {
            Self::Sites => sites.chunk_by(|a, b| a == b).map(<[u32]>::len).collect(),
            _ => vec![hosts.len()],
        };
        // Each site has one list of hosts, which are runs of ranks.
        let mut rest = hosts;
        let sites: Vec<Vec<usize>> = of_sites
            .into_iter()
            .map(|ranks| {
                let (own, others) = rest.split_at(ranks);
                rest = others;
                own.chunk_by(|a, b| a == b).map(<[u32]>::len).collect()
            })
            .collect();
        let bits = |most: usize| most.max(1).next_power_of_two().ilog2();
        let of_ranks = bits(sites.iter().flatten().copied().max().unwrap_or(1));
        let of_hosts = bits(sites.iter().map(Vec::len).max().unwrap_or(1));
        let key = |[site, host, at]: [u32; 3]| (site << of_hosts | host) << of_ranks | at;
        let of_host = |site: u32, host: u32, ranks: usize| (0..ranks as u32).map(move |at| [site, host, at]);
        let of_site = |(site, hosts): (u32, &Vec<usize>)| {
            let hosts = (0..).zip(hosts.clone());
            hosts.flat_map(move |(host, ranks)| of_host(site, host, ranks)).collect::<Vec<_>>()
        };
        let keys = (0..).zip(&sites).flat_map(of_site).map(key).collect();
        Group::with_keys(keys).expect("keys of consecutive ranks ascend")
    }
}

/// The first rank whose number others have, and a rank before it has another one.
fn apart(numbers: &[u32]) -> Option<Rank> {
    let mut known = BTreeSet::new();
    let mut starts = (0..numbers.len()).filter(|at| *at == 0 || numbers[*at] != numbers[at - 1]);
    starts.find(|at| !known.insert(numbers[*at])).map(|rank| rank as Rank)
}

/// Why a list of fold keys makes no group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// A group needs at least one member.
    #[error("a group needs at least one member")]
    Empty,
    /// Keys must ascend strictly, so that rank order is key order.
    #[error("fold keys must ascend: rank {rank} has a key that is not above the one before it")]
    NotAscending {
        /// The first rank whose key does not exceed its predecessor's; if members have several inputs, the first input.
        rank: Rank,
    },
    /// Inputs that are not dealt out to the members so that each has at least one.
    #[error("of {keys} fold keys each member needs at least one, and each key a member")]
    Inputs {
        /// How many fold keys there are.
        keys: usize,
    },
    /// An average of nothing has no value.
    #[error("a group's inputs come of at least one contribution")]
    NoContributors,
}

impl Group {
    /// The group of `size` members whose fold key is their rank: the default.
    ///
    /// # Panics
    /// If `size` is 0.
    pub fn of_size(size: u32) -> Self {
        assert!(size > 0, "a group needs at least one member");
        Self { keys: (0..size).collect(), ends: Vec::new(), contributors: size }
    }

    /// A group with these fold keys, one per rank, strictly ascending.
    pub fn with_keys(keys: Vec<u32>) -> Result<Self, GroupError> {
        if keys.is_empty() {
            return Err(GroupError::Empty);
        }
        match keys.windows(2).position(|pair| pair[0] >= pair[1]) {
            Some(at) => Err(GroupError::NotAscending { rank: at as Rank + 1 }),
            None => {
                let contributors = keys.len() as u32;
                Ok(Self { keys, ends: Vec::new(), contributors })
            }
        }
    }

    /// The group with these fold keys, whose members have these numbers of inputs, in order: one or more for each
    /// member.
    ///
    /// # Errors
    /// [`GroupError::Inputs`].
    pub fn with_inputs(self, inputs: &[u32]) -> Result<Self, GroupError> {
        let keys = self.keys.len();
        let mut ends = Vec::with_capacity(inputs.len());
        let mut end = 0_u32;
        for inputs in inputs {
            end = end.checked_add(*inputs).filter(|_| *inputs > 0).ok_or(GroupError::Inputs { keys })?;
            ends.push(end);
        }
        if end as usize != keys {
            return Err(GroupError::Inputs { keys });
        }
        if ends.len() == keys {
            ends = Vec::new();
        }
        Ok(Self { ends, ..self })
    }

    /// The same members with one input each: of several the first.
    pub fn with_one_input(&self) -> Cow<'_, Self> {
        if !self.has_several() {
            return Cow::Borrowed(self);
        }
        let first = |rank| self.keys[self.inputs_of(rank).start as usize];
        let keys = (0..self.size()).map(first).collect();
        Cow::Owned(Self { keys, ends: Vec::new(), contributors: self.contributors })
    }

    /// The same group, whose members' inputs are sums of `contributors` contributions in all. An average divides by
    /// that number.
    ///
    /// # Errors
    /// [`GroupError::NoContributors`].
    pub fn with_contributors(self, contributors: u32) -> Result<Self, GroupError> {
        match contributors {
            0 => Err(GroupError::NoContributors),
            _ => Ok(Self { contributors, ..self }),
        }
    }

    /// The divisor of an average: the number of inputs, unless these are sums already.
    pub fn contributors(&self) -> u32 {
        self.contributors
    }

    /// How many members the group has.
    pub fn size(&self) -> u32 {
        if self.has_several() { self.ends.len() as u32 } else { self.keys.len() as u32 }
    }

    /// Whether a member has several inputs.
    pub fn has_several(&self) -> bool {
        !self.ends.is_empty()
    }

    /// How many inputs all members have together.
    pub fn inputs(&self) -> u32 {
        self.keys.len() as u32
    }

    /// The inputs of a member, among all.
    ///
    /// # Panics
    /// If there is no such member.
    pub fn inputs_of(&self, rank: Rank) -> Range<u32> {
        if !self.has_several() {
            assert!(rank < self.size(), "rank {rank} of {}", self.size());
            return rank..rank + 1;
        }
        let start = rank.checked_sub(1).map_or(0, |before| self.ends[before as usize]);
        start..self.ends[rank as usize]
    }

    /// The most inputs of a member.
    pub fn most_inputs(&self) -> u32 {
        if !self.has_several() {
            return 1;
        }
        (0..self.size()).map(|rank| self.inputs_of(rank).len() as u32).max().unwrap_or(1)
    }

    /// The member that has an input.
    pub fn holder(&self, input: u32) -> Rank {
        if self.has_several() { self.ends.partition_point(|end| *end <= input) as Rank } else { input }
    }

    /// The fold key of each input, ascending.
    pub fn keys(&self) -> &[u32] {
        &self.keys
    }

    /// How many bits the longest path of the canonical tree decides on (0 for a single member).
    pub fn key_bits(&self) -> u32 {
        u32::BITS - (self.keys[0] ^ self.keys[self.keys.len() - 1]).leading_zeros()
    }
}

/// The largest nodes of the canonical tree over `keys` that make up a run of ranks, in their order.
pub(crate) fn nodes_of(keys: &[u32], run: Range<Rank>) -> Vec<Range<Rank>> {
    let mut nodes = Vec::new();
    let mut start = run.start;
    while start < run.end {
        let ends = (start + 1..=run.end).rev();
        let node = ends.map(|end| start..end).find(|piece| is_node(keys, piece)).expect("a rank is a node");
        start = node.end;
        nodes.push(node);
    }
    nodes
}

/// Whether the ranks of a run are all that lie below one node of the canonical tree.
pub(crate) fn is_node(keys: &[u32], run: &Range<Rank>) -> bool {
    let (first, last) = (keys[run.start as usize], keys[run.end as usize - 1]);
    let below = u32::BITS - (first ^ last).leading_zeros();
    let outside = |key: &u32| key.checked_shr(below) != first.checked_shr(below);
    let before = run.start.checked_sub(1).map(|rank| &keys[rank as usize]);
    before.is_none_or(outside) && keys.get(run.end as usize).is_none_or(outside)
}

/// The number of merges after each partial sum of a list. Folding from left to right with a stack and these merges
/// gives the canonical tree over `keys`. There is one key per partial sum, any key of the partial sum's node, and keys
/// ascend strictly.
///
/// The stack never holds more than log2(number of keys) + 1 partial sums.
///
/// ```
/// // Three ranks: (0 + 1) + 2.
/// assert_eq!(herringbone_core::group::merges(&[0, 1, 2]), [0, 1, 1]);
/// ```
pub fn merges(keys: &[u32]) -> Vec<u8> {
    let mut open: Vec<u32> = Vec::new();
    let mut merges = Vec::with_capacity(keys.len());
    for (at, key) in keys.iter().enumerate() {
        let boundary = keys.get(at + 1).map_or(u32::MAX, |next| (key ^ next).leading_zeros() ^ 31);
        let mut closed = 0;
        while open.last().is_some_and(|&bit| bit < boundary) {
            open.pop();
            closed += 1;
        }
        open.push(boundary);
        merges.push(closed);
    }
    merges
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, recursively: split at the highest bit in which the keys differ.
    fn tree(keys: &[u32]) -> String {
        let [first, .., last] = keys else { return keys[0].to_string() };
        let bit = (first ^ last).ilog2();
        let split = keys.partition_point(|key| key >> bit & 1 == 0);
        format!("({}+{})", tree(&keys[..split]), tree(&keys[split..]))
    }

    fn folded(keys: &[u32]) -> String {
        let mut stack: Vec<String> = Vec::new();
        for (key, merges) in keys.iter().zip(merges(keys)) {
            stack.push(key.to_string());
            for _ in 0..merges {
                let (right, left) = (stack.pop().unwrap(), stack.pop().unwrap());
                stack.push(format!("({left}+{right})"));
            }
            assert!(stack.len() <= 33);
        }
        assert_eq!(stack.len(), 1, "keys {keys:?}");
        stack.pop().unwrap()
    }

    #[test]
    fn merges_fold_into_the_trie() {
        for size in 1..130 {
            let keys: Vec<u32> = (0..size).collect();
            assert_eq!(folded(&keys), tree(&keys));
        }
        for keys in [&[3, 9, 11, 12, 40][..], &[0, u32::MAX], &[7], &[1, 2], &[0, 1, 4, 5, 6, 0x8000_0000]] {
            assert_eq!(folded(keys), tree(keys));
        }
        assert_eq!(folded(&[0, 1, 2, 3, 4, 5]), "(((0+1)+(2+3))+(4+5))");
    }

    #[test]
    fn keys_that_name_hosts_make_each_a_node() {
        let keys = |hosts: &[u32]| FoldOrder::Hosts.group(hosts, &[]).keys().to_vec();
        assert_eq!(keys(&[7, 7, 7, 2, 2, 2]), [0, 1, 2, 4, 5, 6]);
        assert_eq!(keys(&[0, 1, 1, 1, 1, 1]), [0, 8, 9, 10, 11, 12]);
        for as_ranks in [&[0; 6][..], &[0, 1, 2], &[3, 3, 1, 1, 2, 2], &[0, 1, 0, 1], &[5]] {
            let by_ranks = FoldOrder::Ranks.group(as_ranks, &[]);
            assert_eq!(FoldOrder::Hosts.group(as_ranks, &[]), by_ranks, "{as_ranks:?}");
        }
        for (hosts, obstacle) in [(&[1, 1, 0][..], None), (&[1, 0, 1], Some(2)), (&[0, 1, 1, 0, 1], Some(3))]
        {
            assert_eq!(FoldOrder::Hosts.obstacle(hosts, &[]), obstacle.map(FoldObstacle::Host));
            assert_eq!(FoldOrder::Ranks.obstacle(hosts, &[]), None);
        }
        for order in FoldOrder::ALL {
            assert_eq!(FoldOrder::from_code(order.code()), Some(order));
            assert_eq!(order.name().parse(), Ok(order));
        }
        assert_eq!(FoldOrder::from_code(3), None);
        let error = "Hosts".parse::<FoldOrder>().unwrap_err();
        assert_eq!(error.to_string(), "not a fold order: use one of ranks, hosts, sites");
    }

    #[test]
    fn keys_that_name_sites_make_each_a_node_and_its_hosts() {
        let keys = |hosts: &[u32], sites: &[u32]| FoldOrder::Sites.group(hosts, sites).keys().to_vec();
        assert_eq!(keys(&[0, 1, 2, 3, 4, 5], &[0, 0, 0, 1, 1, 1]), [0, 1, 2, 4, 5, 6]);
        assert_eq!(keys(&[0, 0, 0, 1, 2, 2], &[7, 7, 7, 7, 2, 2]), [0, 1, 2, 4, 8, 9]);
        assert_eq!(keys(&[4, 4, 3], &[1, 1, 1]), [0, 1, 2], "one site is as its hosts are");
        for (hosts, sites, obstacle) in [
            (&[0, 1, 2][..], &[0, 0, 1][..], None),
            (&[0, 1, 2], &[], Some(FoldObstacle::NoSites)),
            (&[0, 1, 0], &[0, 0, 0], Some(FoldObstacle::Host(2))),
            (&[0, 1, 2], &[0, 1, 0], Some(FoldObstacle::Site(2))),
        ] {
            assert_eq!(FoldOrder::Sites.obstacle(hosts, sites), obstacle);
            let by_ranks = FoldOrder::Sites.group(hosts, sites) == Group::of_size(3);
            assert!(by_ranks || obstacle.is_none(), "{hosts:?} {sites:?}");
        }
    }

    #[test]
    fn keys_must_ascend() {
        assert_eq!(Group::with_keys(vec![]), Err(GroupError::Empty));
        assert_eq!(Group::with_keys(vec![1, 1]), Err(GroupError::NotAscending { rank: 1 }));
        assert_eq!(Group::with_keys(vec![1, 5]).unwrap().key_bits(), 3);
        assert_eq!(Group::of_size(1).key_bits(), 0);
    }

    #[test]
    fn members_have_one_input_or_several() {
        let keys = || Group::with_keys(vec![0, 2, 3, 4, 6]).unwrap();
        let group = keys().with_inputs(&[2, 2, 1]).unwrap();
        assert_eq!((group.size(), group.inputs(), group.most_inputs()), (3, 5, 2));
        assert_eq!([0, 1, 2].map(|rank| group.inputs_of(rank)), [0..2, 2..4, 4..5]);
        assert_eq!([0, 1, 2, 3, 4].map(|input| group.holder(input)), [0, 0, 1, 1, 2]);
        let one_each = group.with_one_input();
        assert_eq!((one_each.keys(), one_each.contributors()), (&[0, 3, 6][..], 5));
        // One each is no other group than one of which nothing was said.
        assert_eq!(keys().with_inputs(&[1; 5]), Ok(keys()));
        assert_eq!((keys().inputs_of(3), keys().holder(3), keys().most_inputs()), (3..4, 3, 1));
        for wrong in [&[][..], &[5, 0], &[2, 2], &[2, 2, 2], &[u32::MAX, 6], &[1; 4]] {
            assert_eq!(keys().with_inputs(wrong), Err(GroupError::Inputs { keys: 5 }), "{wrong:?}");
        }
    }
}
