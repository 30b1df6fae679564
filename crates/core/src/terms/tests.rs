//! Terms by hand, and what every schedule must end with.

use super::*;
use crate::{
    algorithm::{Algorithm, Layout},
    collective::Collective,
    group::FoldOrder,
    schedule::Schedule,
    verify::verify,
};
use alloc::{format, string::String};

const ENOUGH: HistoryLimits = HistoryLimits { ranks: MOST_RANKS, blocks: 1 << 20 };

fn proven(name: &str, workers: u32, reducers: u32) -> Option<Verified> {
    let (algorithm, group): (Algorithm, _) = (name.parse().unwrap(), Group::of_size(workers));
    let hosts: Vec<u32> = (0..workers).map(|rank| rank / 2).collect();
    let layout = Layout { reducers, hosts: &hosts, links: None };
    let schedule = algorithm.schedule(Collective::AllReduce, &group, &layout).ok()?;
    Some(verify(schedule, Collective::AllReduce, &group).unwrap())
}

fn followed(name: &str, workers: u32, reducers: u32) -> TermHistory {
    history(&proven(name, workers, reducers).unwrap(), ENOUGH).unwrap()
}

/// What ranks hold after so many rounds: a line for each, a word for each chunk.
fn lines(history: &TermHistory, rounds: usize) -> Vec<String> {
    let word = |rank, chunk| {
        let held = history.held(rounds, rank, chunk);
        held.map_or_else(|| String::from("-"), |term| history.text(term, chunk))
    };
    let line = |rank| (0..history.chunks()).map(|chunk| word(rank, chunk)).collect::<Vec<_>>().join(" ");
    (0..history.ranks()).map(line).collect()
}

/// The messages of a round, counted from 1: sender, receiver and what it carries.
fn messages(history: &TermHistory, round: usize) -> Vec<String> {
    let messages = history.rounds()[round - 1].messages.iter();
    messages
        .map(|sent| format!("{}>{} {}", sent.from, sent.to, history.text(sent.term, sent.chunk)))
        .collect()
}

#[test]
fn a_ring_of_four_by_hand() {
    let ring = followed("ring", 4, 0);
    let by_round = [
        ["a0 a1 a2 a3", "b0 b1 b2 b3", "c0 c1 c2 c3", "d0 d1 d2 d3"],
        ["a0 a1 a2 a3+d3", "a0+b0 b1 b2 b3", "c0 b1+c1 c2 c3", "d0 d1 c2+d2 d3"],
        ["a0 a1 c2+d2+a2 a3+d3", "a0+b0 b1 b2 a3+d3+b3", "a0+b0+c0 b1+c1 c2 c3", "d0 b1+c1+d1 c2+d2 d3"],
        [
            "a0 b1+c1+d1+a1 c2+d2+a2 a3+d3",
            "a0+b0 b1 c2+d2+a2+b2 a3+d3+b3",
            "a0+b0+c0 b1+c1 c2 a3+d3+b3+c3",
            "a0+b0+c0+d0 b1+c1+d1 c2+d2 d3",
        ],
        [
            "a0+b0+c0+d0 b1+c1+d1+a1 c2+d2+a2 a3+d3",
            "a0+b0 b1+c1+d1+a1 c2+d2+a2+b2 a3+d3+b3",
            "a0+b0+c0 b1+c1 c2+d2+a2+b2 a3+d3+b3+c3",
            "a0+b0+c0+d0 b1+c1+d1 c2+d2 a3+d3+b3+c3",
        ],
        [
            "a0+b0+c0+d0 b1+c1+d1+a1 c2+d2+a2 a3+d3+b3+c3",
            "a0+b0+c0+d0 b1+c1+d1+a1 c2+d2+a2+b2 a3+d3+b3",
            "a0+b0+c0 b1+c1+d1+a1 c2+d2+a2+b2 a3+d3+b3+c3",
            "a0+b0+c0+d0 b1+c1+d1 c2+d2+a2+b2 a3+d3+b3+c3",
        ],
        ["a0+b0+c0+d0 b1+c1+d1+a1 c2+d2+a2+b2 a3+d3+b3+c3"; 4],
    ];
    assert_eq!(ring.rounds().len(), 6);
    for (rounds, expected) in by_round.iter().enumerate() {
        assert_eq!(lines(&ring, rounds), expected, "after {rounds} rounds");
    }
    assert_eq!(messages(&ring, 1), ["0>1 a0", "1>2 b1", "2>3 c2", "3>0 d3"]);
    assert_eq!(messages(&ring, 3), ["0>1 c2+d2+a2", "1>2 a3+d3+b3", "2>3 a0+b0+c0", "3>0 b1+c1+d1"]);
}

#[test]
fn five_reducers_of_four_workers_by_hand() {
    let served = followed("reduction_server", 4, 5);
    assert_eq!((served.workers(), served.ranks(), served.chunks(), served.rounds().len()), (4, 9, 5, 2));
    let sum = |chunk: u32| format!("(a{chunk}+b{chunk})+(c{chunk}+d{chunk})");
    let after_one = lines(&served, 1);
    assert_eq!(after_one[..4], ["a0 a1 a2 a3 a4", "b0 b1 b2 b3 b4", "c0 c1 c2 c3 c4", "d0 d1 d2 d3 d4"]);
    assert_eq!(after_one[4], format!("{} - - - -", sum(0)));
    assert_eq!(after_one[8], format!("- - - - {}", sum(4)));
    assert_eq!(messages(&served, 1).len(), 20);
    assert_eq!(messages(&served, 2)[..4], [0, 1, 2, 3].map(|worker| format!("4>{worker} {}", sum(0))));
    let all = (0..5).map(sum).collect::<Vec<_>>().join(" ");
    assert_eq!(lines(&served, 2)[..4], [(); 4].map(|()| all.clone()));
}

#[test]
fn a_tree_of_five_by_hand() {
    let tree = followed("tree", 5, 0);
    assert_eq!(lines(&tree, 0), ["a0", "b0", "c0", "d0", "e0"]);
    assert_eq!(messages(&tree, 1), ["1>0 b0", "3>2 d0", "4>0 e0"]);
    assert_eq!(lines(&tree, 1), ["a0", "b0", "c0+d0", "d0", "e0"]);
    assert_eq!(messages(&tree, 2), ["2>0 c0+d0"]);
    assert_eq!(lines(&tree, 2)[0], "(a0+b0)+(c0+d0)+e0");
    assert_eq!(lines(&tree, tree.rounds().len()), ["(a0+b0)+(c0+d0)+e0"; 5]);
}

/// The sum of the canonical tree over a group, as text.
fn canonical(group: &Group, chunk: Chunk) -> String {
    fn write(keys: &[u32], first: u32, chunk: Chunk) -> (String, bool) {
        let [low, .., high] = keys else { return (format!("{}{chunk}", letters(first)), false) };
        let bit = (low ^ high).ilog2();
        let split = keys.partition_point(|key| key >> bit & 1 == 0);
        let (left, is_left_sum) = write(&keys[..split], first, chunk);
        let (right, is_right_sum) = write(&keys[split..], first + split as u32, chunk);
        let bracketed = |text: String, so: bool| if so { format!("({text})") } else { text };
        let left = bracketed(left, is_left_sum && is_right_sum);
        (format!("{left}+{}", bracketed(right, is_right_sum)), true)
    }
    write(group.keys(), 0, chunk).0
}

/// Every algorithm of every size: the sum that the proof promises, and the same letters everywhere.
#[test]
fn every_algorithm_ends_with_the_sum_of_all() {
    let mut followed_to_the_end = 0;
    for algorithm in Algorithm::all() {
        for workers in 2..=9 {
            let reducers = if algorithm.needs_reducers() { 3 } else { 0 };
            let Some(proven) = proven(&format!("{algorithm}"), workers, reducers) else { continue };
            let history = history(&proven, ENOUGH).unwrap();
            let rounds = history.rounds().len();
            for chunk in 0..history.chunks() {
                let first = history.held(rounds, 0, chunk).unwrap();
                assert_eq!((history.inputs(first), history.is_result(first)), (workers, true));
                let text = history.text(first, chunk);
                for rank in 0..workers {
                    assert_eq!(history.held(rounds, rank, chunk), Some(first), "{algorithm} of {workers}");
                    let name = format!("{}{chunk}", letters(rank));
                    assert_eq!(text.matches(&name).count(), 1, "{text} has {name} once");
                }
                if history.order() == Order::Fixed {
                    assert_eq!(text, canonical(proven.group(), chunk), "{algorithm} of {workers}");
                }
            }
            // Places that are used again, and lanes that keep their order, may let a message wait for the next round.
            assert!(rounds as u32 >= proven.cost().rounds, "{algorithm} of {workers}");
            followed_to_the_end += 1;
        }
    }
    assert!(followed_to_the_end > 80, "{followed_to_the_end} schedules");
}

#[test]
fn hosts_change_the_brackets() {
    let group = FoldOrder::Hosts.group(&[0, 1, 1], &[]);
    let schedule = "radix".parse::<Algorithm>().unwrap();
    let schedule = schedule.schedule(Collective::AllReduce, &group, &Layout::default()).unwrap();
    let proven = verify(schedule, Collective::AllReduce, &group).unwrap();
    let history = history(&proven, ENOUGH).unwrap();
    let result = history.held(2, 0, 1).unwrap();
    assert_eq!(history.text(result, 1), "a1+(b1+c1)");
    assert!(matches!(history.composition(result), Composition::Result(_)));
}

#[test]
fn what_only_moves_has_no_sums() {
    let group = Group::of_size(3);
    let radix = "radix".parse::<Algorithm>().unwrap();
    let gathered = radix.schedule(Collective::AllGather, &group, &Layout::default()).unwrap();
    let history = history(&verify(gathered, Collective::AllGather, &group).unwrap(), ENOUGH).unwrap();
    assert_eq!(lines(&history, 0), ["a0 - -", "- b1 -", "- - c2"]);
    assert_eq!(lines(&history, history.rounds().len()), ["a0 b1 c2"; 3]);
}

#[test]
fn one_rank_finishes_its_own_input() {
    let history = followed("radix", 1, 0);
    assert_eq!((history.rounds().len(), history.rounds()[0].messages.len()), (1, 0));
    let [before, after] = [0, 1].map(|rounds| history.held(rounds, 0, 0).unwrap());
    assert_eq!([before, after].map(|term| history.is_result(term)), [false, true]);
}

/// A rank that adds its input to a sum of its own a thousand times, and then does as it should.
#[test]
fn a_sum_that_leads_nowhere_is_counted_and_not_written() {
    let mut text =
        String::from("schedule workers=1 reducers=0 cut=even:1\nrank 0\n slots acc acc\n fold c0 s0 = u0\n");
    for at in 0..1000 {
        text += &format!(" fold c0 s{} = s{} u0+\n", (at + 1) % 2, at % 2);
    }
    text += " finish c0 u0 = u0\n";
    let (schedule, group) = (Schedule::parse(&text).unwrap(), Group::of_size(1));
    let history = history(&verify(schedule, Collective::AllReduce, &group).unwrap(), ENOUGH).unwrap();
    let last = history.held(1, 0, 0).unwrap();
    assert_eq!((history.inputs(last), history.text(last, 0)), (1001, String::from("1001 inputs")));
}

#[test]
fn what_is_too_much_is_refused_with_its_numbers() {
    let ring = proven("ring", 4, 0).unwrap();
    let refused = |ranks, blocks| history(&ring, HistoryLimits { ranks, blocks }).unwrap_err().to_string();
    assert_eq!(refused(3, 1000), "4 ranks are more than 3");
    assert_eq!(
        refused(4, 111),
        "4 ranks x 4 chunks x 6 or more rounds, and the start, are more than 111 blocks"
    );
    assert!(history(&ring, HistoryLimits { ranks: 4, blocks: 112 }).is_ok());
    // Some messages wait for another one's place, so a round more is needed than the longest chain has messages.
    let trees = proven("double_tree", 3, 0).unwrap();
    assert_eq!(trees.cost().rounds, 4);
    let blocks = u64::from(3 * trees.cut().chunks() * 5);
    let refused = history(&trees, HistoryLimits { ranks: 3, blocks }).unwrap_err().to_string();
    assert!(refused.contains("5 or more rounds"), "{refused}");
    let many = proven("tree", MOST_RANKS + 1, 0).unwrap();
    let limits = HistoryLimits { ranks: u32::MAX, blocks: u64::MAX };
    assert_eq!(history(&many, limits).unwrap_err(), HistoryError::Ranks { ranks: 257, most: 256 });
}
