use super::*;
use crate::session::survivors::Survivors;

fn shrink(members: Rank) -> Shrink {
    Shrink { group: 7, members: (0..members).collect(), least: 1, dead: Vec::new(), completed: 0 }
}

fn election(me: Rank, members: Rank, gone: &[(Rank, bool)]) -> Election {
    Election::new(me, shrink(members), &gone.iter().copied().collect())
}

#[test]
fn the_lowest_that_is_left_decides_once_the_others_are_here() {
    let gone = [(0, true)];
    let (mut one, mut two) = (election(1, 4, &gone), election(2, 4, &gone));
    assert!(one.decides() && !two.decides());
    assert_eq!((one.to_call(0), two.to_call(0)), (Vec::from([2, 3]), Vec::from([1])));
    assert!(one.comes(2, &two.request()) && one.outcome().is_none());
    assert_eq!(one.missing(), [3]);
    assert!(one.comes(3, &election(3, 4, &gone).request()));
    assert_eq!(one.outcome(), Some(ShrinkOutcome::Continue(Vec::from([1, 2, 3]))));
    one.withdraws(3);
    assert_eq!(one.outcome(), None);
}

#[test]
fn who_cannot_be_called_counts_as_silent_and_not_as_dead() {
    let mut two = election(2, 4, &[(0, true)]);
    for now in (0..=PATIENCE_MILLISECONDS).step_by(50) {
        two.to_call(now).into_iter().for_each(|rank| two.failed(rank, now));
    }
    assert!(two.decides(), "rank 1 does not answer");
    assert!(two.comes(3, &election(3, 4, &[(0, true)]).request()));
    assert_eq!(two.outcome(), Some(ShrinkOutcome::Continue(Vec::from([2, 3]))), "two against one");
    two.withdraws(3);
    two.silent.insert(3);
    assert_eq!(two.outcome(), Some(ShrinkOutcome::NoMajority { silent: Vec::from([1, 3]) }));
}

#[test]
fn a_death_that_is_known_only_later_counts() {
    let mut one = election(1, 3, &[(0, true)]);
    one.silent.insert(2);
    assert_eq!(one.outcome(), Some(ShrinkOutcome::NoMajority { silent: Vec::from([2]) }));
    one.learn(&[(2, true)].into());
    assert_eq!(one.outcome(), Some(ShrinkOutcome::Continue(Vec::from([1]))));
}

#[test]
fn what_one_knows_for_certain_counts_for_all() {
    let mut one = election(1, 3, &[(0, false)]);
    assert!(one.comes(2, &election(2, 3, &[(0, true)]).request()));
    assert_eq!(one.outcome(), Some(ShrinkOutcome::Continue(Vec::from([1, 2]))));
    let mut alone = election(1, 2, &[(0, false)]);
    assert_eq!(
        (alone.to_call(0), alone.outcome()),
        (Vec::new(), Some(ShrinkOutcome::NoMajority { silent: [0].into() }))
    );
}

#[test]
fn strangers_and_ranks_of_other_groups_are_not_let_in() {
    let mut one = election(1, 3, &[(0, true)]);
    let other = Shrink { group: 8, ..shrink(3) };
    assert!(!one.comes(2, &other) && !one.comes(9, &shrink(3)) && !one.comes(0, &shrink(3)));
    assert!(!election(2, 3, &[]).comes(1, &shrink(3)), "a lower one decides itself");
}

/// Random numbers that are the same on every machine (SplitMix64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// What a rank does in the simulated cluster.
enum State {
    Idle,
    Looks(Election),
    Waits(Election, Rank),
    GoneOn,
}

/// A cluster of ranks that look for each other, over links that break and heal, as time passes.
struct Cluster {
    rng: Rng,
    now: u64,
    ranks: Vec<State>,
    alive: Vec<bool>,
    /// Directions in which nothing comes through.
    cut: BTreeSet<(Rank, Rank)>,
    /// Calls under way: when they end, from whom, to whom.
    calls: Vec<(u64, Rank, Rank)>,
    /// Groups that have gone on.
    founded: Vec<Vec<Rank>>,
    /// Whether one went on while another one lived that has no rank in common with it.
    split: bool,
    /// Takes whoever is silent for dead: an error that the checks have to find.
    planted: bool,
}

impl Cluster {
    fn reaches(&self, from: Rank, to: Rank) -> bool {
        !self.cut.contains(&(from, to)) && !self.cut.contains(&(to, from))
    }

    fn found(&mut self, left: Vec<Rank>) {
        left.iter().for_each(|rank| self.ranks[*rank as usize] = State::GoneOn);
        let lives = |group: &Vec<Rank>| group.iter().any(|rank| self.alive[*rank as usize]);
        let apart = |group: &Vec<Rank>| group.iter().all(|rank| !left.contains(rank));
        self.split |= self.founded.iter().any(|group| lives(group) && apart(group));
        self.founded.push(left);
    }

    fn cut_at_random(&mut self) {
        let n = self.ranks.len() as u64;
        self.cut.clear();
        match self.rng.below(4) {
            0 => {
                let side: Vec<bool> = (0..n).map(|_| self.rng.below(2) == 0).collect();
                let apart = |a: u64, b: u64| side[a as usize] != side[b as usize];
                let pairs = (0..n).flat_map(|a| (0..n).map(move |b| (a, b)));
                self.cut =
                    pairs.filter(|(a, b)| apart(*a, *b)).map(|(a, b)| (a as Rank, b as Rank)).collect();
            }
            1 => {
                let (a, b) = (self.rng.below(n) as Rank, self.rng.below(n) as Rank);
                self.cut.insert((a, b));
            }
            2 => {
                let alone = self.rng.below(n) as Rank;
                self.cut = (0..n as Rank).map(|other| (alone, other)).collect();
            }
            _ => {}
        }
    }

    /// What a rank knows of the others as it begins: of those on its host all, of rank 0 what its connection tells.
    fn begin(&mut self, me: Rank) {
        let n = self.ranks.len() as Rank;
        let mut gone = BTreeMap::new();
        for other in (0..n).filter(|other| *other != me) {
            let is_local = other % 2 == me % 2;
            match (self.alive[other as usize], self.reaches(me, other)) {
                (false, true) if is_local || other == 0 => drop(gone.insert(other, true)),
                (_, false) if other == 0 => drop(gone.insert(0, false)),
                _ => {}
            }
        }
        // While rank 0 is there, it is asked.
        if gone.contains_key(&0) {
            let election = Election::new(me, shrink(n), &gone);
            self.ranks[me as usize] = State::Looks(election);
        }
    }

    fn call(&mut self, from: Rank, to: Rank) {
        let quickly = !self.alive[to as usize] || matches!(self.ranks[to as usize], State::GoneOn);
        let takes = if self.reaches(from, to) && !quickly {
            1 + self.rng.below(30)
        } else {
            20 + self.rng.below(900)
        };
        self.calls.push((self.now + takes, from, to));
    }

    fn called(&mut self, from: Rank, to: Rank) {
        let there = self.alive[to as usize]
            && self.reaches(from, to)
            && !matches!(self.ranks[to as usize], State::GoneOn);
        let State::Looks(mut caller) = core::mem::replace(&mut self.ranks[from as usize], State::Idle) else {
            unreachable!("it looks while it calls")
        };
        let is_taken = match &mut self.ranks[to as usize] {
            State::Looks(called) if there && to < from => called.comes(from, &caller.request()),
            _ => false,
        };
        match there {
            true => caller.lives(to, self.now),
            false => caller.failed(to, self.now),
        }
        if self.planted {
            caller.dead.append(&mut caller.silent);
        }
        self.ranks[from as usize] = if is_taken { State::Waits(caller, to) } else { State::Looks(caller) };
    }

    /// Whoever waits at a rank that is no more there looks again.
    fn look_again(&mut self) {
        for me in 0..self.ranks.len() {
            let State::Waits(_, at) = &self.ranks[me] else { continue };
            let at = *at as usize;
            let is_there = self.alive[at] && matches!(self.ranks[at], State::Looks(_));
            if !is_there
                && let State::Waits(election, _) = core::mem::replace(&mut self.ranks[me], State::Idle)
            {
                self.ranks[me] = State::Looks(election);
            }
        }
    }

    /// A rank decides. It goes on if all that are to go on hear it: else it, too, looks again.
    fn decide(&mut self, me: Rank) {
        let State::Looks(election) = &self.ranks[me as usize] else { return };
        let Some(ShrinkOutcome::Continue(left)) = election.outcome() else { return };
        let hears = |rank: &Rank| {
            let waits = matches!(&self.ranks[*rank as usize], State::Waits(_, at) if *at == me);
            *rank == me || (waits && self.alive[*rank as usize] && self.reaches(me, *rank))
        };
        let lost: Vec<Rank> = left.iter().copied().filter(|rank| !hears(rank)).collect();
        if lost.is_empty() {
            self.found(left);
        } else if let State::Looks(election) = &mut self.ranks[me as usize] {
            lost.into_iter().for_each(|rank| election.withdraws(rank));
        }
    }

    fn step(&mut self) {
        self.now += 10;
        let (over, under_way) =
            core::mem::take(&mut self.calls).into_iter().partition(|call| call.0 <= self.now);
        self.calls = under_way;
        let over: Vec<(u64, Rank, Rank)> = over;
        for (_, from, to) in over {
            if self.alive[from as usize] && matches!(self.ranks[from as usize], State::Looks(_)) {
                self.called(from, to);
            }
        }
        self.look_again();
        for me in 0..self.ranks.len() as Rank {
            if !self.alive[me as usize] {
                continue;
            }
            if let State::Looks(election) = &mut self.ranks[me as usize] {
                let calls = election.to_call(self.now);
                calls.into_iter().for_each(|to| self.call(me, to));
            }
            self.decide(me);
        }
    }

    /// Whoever is left at rank 0 while it lives, and decides as the hub.
    fn hub(&mut self) {
        if !self.alive[0] {
            return;
        }
        let n = self.ranks.len() as Rank;
        let mut hub = Survivors::default();
        for rank in 1..n {
            match (self.alive[rank as usize], self.reaches(0, rank)) {
                (false, true) => drop(hub.lose(rank, true)),
                (_, false) => drop(hub.lose(rank, self.planted)),
                (true, true) if matches!(self.ranks[rank as usize], State::Idle) => {}
                // It has given rank 0 up, and does not answer it.
                (true, true) => drop(hub.lose(rank, false)),
            }
        }
        let asks = (0..n).filter(|rank| *rank == 0 || self.reaches(0, *rank));
        let asks = asks
            .filter(|rank| self.alive[*rank as usize] && matches!(self.ranks[*rank as usize], State::Idle));
        let answers: Vec<_> = asks.flat_map(|rank| hub.call(rank, shrink(n))).collect();
        if let Some((_, shrunk)) = answers.into_iter().next()
            && let ShrinkOutcome::Continue(left) = shrunk.outcome
        {
            self.found(left);
        }
    }
}

fn is_one_majority(seed: u64, planted: bool) -> (bool, bool) {
    let mut rng = Rng(seed);
    let n = 2 + rng.below(6) as usize;
    let mut cluster = Cluster {
        now: 0,
        ranks: (0..n).map(|_| State::Idle).collect(),
        alive: alloc::vec![true; n],
        cut: BTreeSet::new(),
        calls: Vec::new(),
        founded: Vec::new(),
        split: false,
        planted,
        rng,
    };
    cluster.cut_at_random();
    cluster.alive[0] = cluster.rng.below(3) == 0;
    let begins: Vec<u64> = (0..n).map(|_| cluster.rng.below(60)).collect();
    let hub_at = cluster.rng.below(400);
    for step in 0..600 {
        for (rank, begins) in (0..).zip(&begins).skip(1) {
            if *begins == step && cluster.alive[rank as usize] {
                cluster.begin(rank);
            }
        }
        if step == hub_at {
            cluster.hub();
        }
        match cluster.rng.below(60) {
            0 if step < 300 => cluster.cut_at_random(),
            1 if step < 300 => {
                let victim = cluster.rng.below(n as u64) as usize;
                cluster.alive[victim] &= cluster.rng.below(3) > 0;
            }
            _ => {}
        }
        if step == 300 {
            cluster.cut.clear();
        }
        cluster.step();
    }
    (cluster.split, !cluster.founded.is_empty())
}

/// Links break and heal, one way and both; ranks die, before and while the others look for each other.
#[test]
fn no_two_groups_go_on_in_any_of_20_000_clusters() {
    let ends: Vec<(bool, bool)> = (0..20_000).map(|seed| is_one_majority(seed, false)).collect();
    let bad = ends.iter().position(|(apart, _)| *apart);
    assert_eq!(bad, None, "the seed of a cluster of which two groups went on");
    let go_on = ends.iter().filter(|(_, go_on)| *go_on).count();
    assert!(go_on > 8_000, "{go_on} went on");
}

#[test]
fn two_majorities_are_found_where_the_silent_are_taken_for_dead() {
    assert!((0..2_000).any(|seed| is_one_majority(seed, true).0));
}
