//! What a job is to do, and what goes wrong.

use proptest::{collection::vec, prelude::*};

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// All send to all.
    AllToAll,
    /// A sum, by a reducer if there is one.
    Sum,
    /// One sends to all.
    Broadcast(u32),
}

/// What goes wrong. Numbers of processes are taken modulo how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// A rank ends without a word.
    Kill(u32),
    /// A rank does not run any more, and nobody is told.
    Hang(u32),
    /// A reducer ends. Ranks whose bit is set see that; if none is, all do.
    KillReducer { which: u32, seen_by: u32 },
    /// The link between two ranks breaks, with all that is on its way. One sees the reason at once; the other one later, or not.
    Break { one: u32, other: u32, seen_by_both: bool, damaged: bool },
    /// A rank makes no more calls, closes the group, and leaves the job or does not.
    Leave { which: u32, with_job: bool },
    /// A rank aborts the group.
    Abort(u32),
    /// A rank's next call is another one.
    Mistake(u32),
    /// A rank makes no calls for longer than the others wait.
    Pause(u32),
}

impl Trouble {
    /// Whether calls go on as if nothing had happened.
    pub(super) fn is_harmless(&self) -> bool {
        matches!(self, Trouble::KillReducer { .. })
    }
}

#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) workers: u32,
    pub(super) reducers: usize,
    /// What is called, again and again.
    pub(super) program: Vec<Kind>,
    pub(super) calls: u64,
    /// How many calls may be under way at once.
    pub(super) window: usize,
    /// Whether ranks close the group with their last call, and not only once all is known.
    pub(super) closes_at_once: bool,
    /// With the steps of the run at which they happen.
    pub(super) troubles: Vec<(u32, Trouble)>,
    pub(super) seed: u64,
}

impl Scenario {
    /// What the call of a number does.
    pub(super) fn kind(&self, number: u64) -> Kind {
        match self.program[number as usize % self.program.len()] {
            Kind::Broadcast(root) => Kind::Broadcast(root % self.workers),
            kind => kind,
        }
    }
}

fn any_kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        2 => Just(Kind::AllToAll),
        4 => Just(Kind::Sum),
        2 => (0_u32..4).prop_map(Kind::Broadcast),
    ]
}

fn any_trouble() -> impl Strategy<Value = Trouble> {
    let rank = || 0_u32..4;
    prop_oneof![
        1 => rank().prop_map(Trouble::Kill),
        1 => rank().prop_map(Trouble::Hang),
        4 => (0_u32..3, 0_u32..16).prop_map(|(which, seen_by)| Trouble::KillReducer { which, seen_by }),
        2 => (rank(), rank(), any::<(bool, bool)>()).prop_map(|(one, other, (seen_by_both, damaged))| {
            Trouble::Break { one, other, seen_by_both, damaged }
        }),
        1 => (rank(), any::<bool>()).prop_map(|(which, with_job)| Trouble::Leave { which, with_job }),
        1 => rank().prop_map(Trouble::Abort),
        2 => rank().prop_map(Trouble::Mistake),
        1 => rank().prop_map(Trouble::Pause),
    ]
}

pub(super) fn any_scenario() -> impl Strategy<Value = Scenario> {
    let shape = (2_u32..5, 0_usize..3, 1_u64..10, 1_usize..4);
    let troubles = vec((0_u32..150, any_trouble()), 0..4);
    (shape, vec(any_kind(), 1..5), troubles, any::<(bool, u64)>()).prop_map(
        |((workers, reducers, calls, window), program, troubles, (closes_at_once, seed))| Scenario {
            workers,
            reducers,
            program,
            calls,
            window,
            closes_at_once,
            troubles,
            seed,
        },
    )
}
