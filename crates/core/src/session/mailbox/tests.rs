use super::*;
use alloc::{vec, vec::Vec};

type Numbers = Mailbox<u32, u32, u32>;

fn envelope(tag: i64, count: u64) -> Envelope {
    Envelope { tag, dtype: DType::F32, count }
}

fn wanted(from: Option<Rank>, tag: i64, receive: u32) -> Asked<u32> {
    Asked { from, envelope: envelope(tag, 1), receive }
}

/// Which receive got which message of whom.
fn who(found: Option<Match<u32, u32>>) -> Option<(u32, Rank, u64)> {
    found.map(|found| (found.receive, found.from, found.number))
}

#[test]
fn messages_of_one_tag_keep_their_order_and_others_may_pass() {
    let mut mailbox = Numbers::default();
    for (number, tag) in [(0, 1), (1, 2), (2, 1)] {
        assert_eq!(mailbox.announced(5, number, envelope(tag, 1), 0), Ok(None));
    }
    assert_eq!(who(mailbox.receive(wanted(Some(5), 2, 10))), Some((10, 5, 1)));
    assert_eq!(who(mailbox.receive(wanted(Some(5), 1, 11))), Some((11, 5, 0)));
    assert_eq!(who(mailbox.receive(wanted(None, 1, 12))), Some((12, 5, 2)));
    assert!(mailbox.wanted().next().is_none());
}

/// A receive that names its source and one that does not wait for the same tag.
#[test]
fn the_oldest_receive_that_fits_is_served() {
    let mut mailbox = Numbers::default();
    for (from, receive) in [(Some(1), 20), (None, 21), (Some(2), 22), (Some(1), 23)] {
        assert_eq!(mailbox.receive(wanted(from, 7, receive)), None);
    }
    let mut announce = |from, number| who(mailbox.announced(from, number, envelope(7, 1), 0).unwrap());
    assert_eq!(announce(2, 0), Some((21, 2, 0)));
    assert_eq!(announce(2, 1), Some((22, 2, 1)));
    assert_eq!(announce(1, 0), Some((20, 1, 0)));
    assert_eq!(announce(3, 0), None);
    assert_eq!(announce(1, 1), Some((23, 1, 1)));
    assert_eq!(who(mailbox.receive(wanted(None, 7, 24))), Some((24, 3, 0)));
}

#[test]
fn a_message_out_of_turn_is_refused() {
    let mut mailbox = Numbers::default();
    assert_eq!(mailbox.announced(1, 1, envelope(0, 1), 0), Ok(None));
    assert_eq!(mailbox.announced(1, 1, envelope(0, 1), 0), Err(OutOfTurn { number: 1, next: 2 }));
    assert_eq!(mailbox.send(1, 8), 0);
    assert!(mailbox.has_sent(1, 0) && !mailbox.has_sent(1, 1) && !mailbox.has_sent(2, 0));
    assert_eq!(mailbox.sends().collect::<Vec<_>>(), [(1, 0, &8)]);
    assert_eq!(mailbox.send_mut(1, 0), Some(&mut 8));
    assert_eq!(
        (mailbox.answered(1, 0), mailbox.answered(1, 0), mailbox.answered(9, 0)),
        (Some(8), None, None)
    );
}

#[test]
fn what_is_given_up_leaves_nothing() {
    let mut mailbox = Numbers::default();
    assert_eq!(mailbox.announced(1, 0, envelope(3, 1), 0), Ok(None));
    assert_eq!((mailbox.withdrawn(1, 0), mailbox.withdrawn(1, 0)), (Some(envelope(3, 1)), None));
    assert_eq!(mailbox.announced(1, 1, envelope(3, 1), 0), Ok(None));
    mailbox.forget(1);
    for receive in 0..4 {
        assert_eq!(mailbox.receive(wanted(Some(receive % 2), 3, receive)), None);
    }
    let gone = mailbox.give_up(|wanted| wanted.from == Some(1));
    assert_eq!(gone.iter().map(|wanted| wanted.receive).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(mailbox.wanted().count(), 2);
    assert_eq!(mailbox.give_up(|_| true).len(), 2);
    assert!(mailbox.wanted().next().is_none());
}

#[test]
fn so_many_may_wait_and_tags_leave_nothing_behind() {
    let mut mailbox = Numbers::default();
    for number in 0..WAITING_MOST as u64 {
        mailbox.announced(1, number, envelope(number as i64, 1), 0).unwrap();
    }
    let (number, next) = (WAITING_MOST as u64, WAITING_MOST as u64);
    assert_eq!(mailbox.announced(1, number, envelope(0, 1), 0), Err(OutOfTurn { number, next }));
    assert_eq!(mailbox.announced(2, 0, envelope(-1, 1), 0), Ok(None));
    for tag in (0..WAITING_MOST as i64).rev() {
        assert!(mailbox.receive(wanted(None, tag, 0)).is_some());
    }
    assert!(mailbox.peers[&1].waiting.is_empty() && mailbox.wanted.is_empty());
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Three ranks send to a fourth, which asks in any order; what is on its way keeps its order per sender. The reference looks
/// at the whole history: each receive, oldest first by the moment at which both sides were there.
#[test]
fn whatever_the_order_each_receive_gets_one_message_that_fits_and_none_overtakes() {
    for seed in 0..400 {
        let mut rng = Rng(seed);
        let mut mailbox = Numbers::default();
        let (mut on_its_way, mut next) = (vec![VecDeque::new(); 3], [0u64; 3]);
        let mut asked: Vec<(Option<Rank>, i64)> = Vec::new();
        let mut got: Vec<(u32, Rank, u64, i64)> = Vec::new();
        let mut sent: Vec<Vec<i64>> = vec![Vec::new(); 3];
        for _ in 0..200 {
            let (rank, tag) = (rng.below(3) as usize, rng.below(3) as i64);
            let found = match rng.below(3) {
                0 => {
                    sent[rank].push(tag);
                    on_its_way[rank].push_back(tag);
                    None
                }
                1 => on_its_way[rank].pop_front().and_then(|tag| {
                    next[rank] += 1;
                    mailbox.announced(rank as Rank, next[rank] - 1, envelope(tag, 1), 0).unwrap()
                }),
                _ => {
                    let from = (rng.below(2) == 0).then_some(rank as Rank);
                    asked.push((from, tag));
                    mailbox.receive(wanted(from, tag, asked.len() as u32 - 1))
                }
            };
            got.extend(found.map(|found| (found.receive, found.from, found.number, found.sent.tag)));
        }
        for (at, (receive, from, number, tag)) in got.iter().enumerate() {
            let (source, wanted_tag) = asked[*receive as usize];
            assert!(source.is_none_or(|source| source == *from) && wanted_tag == *tag);
            assert_eq!(sent[*from as usize][*number as usize], *tag);
            // Of one sender and tag the earlier message goes first, and to the earlier of two like receives.
            for (other, sender, later, its_tag) in &got[at + 1..] {
                if (sender, its_tag) == (from, tag) {
                    assert!(later > number, "seed {seed}");
                    assert!(
                        asked[*other as usize] != asked[*receive as usize] || other > receive,
                        "seed {seed}"
                    );
                }
            }
        }
        // Nothing that fits is left on both sides.
        for wanted in mailbox.wanted() {
            for (rank, peer) in &mailbox.peers {
                let fits = wanted.from.is_none_or(|from| from == *rank);
                assert!(!fits || !peer.waiting.contains_key(&wanted.envelope.tag), "seed {seed}");
            }
        }
    }
}
