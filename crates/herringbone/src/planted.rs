//! Errors that tests and the simulator plant into recoveries, to see that they find them.

use crate::core::execution::Rules;
use std::cell::Cell;
#[cfg(test)]
use std::sync::Mutex;

/// An error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plant {
    /// An operation with reducers ends before all workers hold its result.
    CompleteEarly,
    /// What was reported to the hub changes after that.
    NoFence,
    /// A message of a group that begins is dropped at a rank that has not heard of it yet, rather than kept.
    DropNewer,
    /// A result is read from a socket straight into the only copy of an input.
    ReadIntoInput,
    /// What somebody holds is folded again.
    ForgetHolders,
    /// What is left of an operation is done twice.
    ResumeTwice,
    /// An operation that others have finished for a reducer does not end.
    LostCompletion,
    /// What a lost reducer has left of operations that run is finished before that of operations that wait.
    RunningFirst,
    /// A member confirms what a rank has called that leaves, and does not compare.
    ConfirmBlindly,
    /// A rank that aborts a group does not say so.
    SilentAbort,
    /// A member does not say what it has called when a reducer is lost.
    ResumeBlindly,
    /// A rank that leaves a group does not say how many calls it has made.
    LeaveUncounted,
    /// A rank begins more segments at once than its window holds.
    WideLots,
    /// A rank begins segments before its receivers are done with those whose slots they take.
    WideWindows,
}

impl Plant {
    /// Each with its name.
    pub(crate) const ALL: [(&str, Plant); 14] = [
        ("complete-early", Plant::CompleteEarly),
        ("no-fence", Plant::NoFence),
        ("drop-newer", Plant::DropNewer),
        ("read-into-input", Plant::ReadIntoInput),
        ("forget-holders", Plant::ForgetHolders),
        ("resume-twice", Plant::ResumeTwice),
        ("lost-completion", Plant::LostCompletion),
        ("running-first", Plant::RunningFirst),
        ("confirm-blindly", Plant::ConfirmBlindly),
        ("silent-abort", Plant::SilentAbort),
        ("resume-blindly", Plant::ResumeBlindly),
        ("leave-uncounted", Plant::LeaveUncounted),
        ("wide-lots", Plant::WideLots),
        ("wide-windows", Plant::WideWindows),
    ];

    /// The error of a name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(other, _)| *other == name).map(|(_, plant)| *plant)
    }
}

thread_local! {
    static PLANTED: Cell<Option<Plant>> = const { Cell::new(None) };
}

/// An error that is there until this is dropped, on this thread.
pub(crate) struct Planted;

impl Drop for Planted {
    fn drop(&mut self) {
        PLANTED.set(None);
    }
}

/// Plants an error on this thread.
pub(crate) fn plant(plant: Plant) -> Planted {
    PLANTED.set(Some(plant));
    Planted
}

/// The rules of operations, with the error that was planted.
pub(crate) fn rules() -> Rules {
    Rules {
        waits_for_stable: !has(Plant::CompleteEarly),
        keeps_input: !has(Plant::ReadIntoInput),
        lot: has(Plant::WideLots).then_some(1000),
        window: has(Plant::WideWindows).then_some(1000),
        ..Rules::DEFAULT
    }
}

/// Whether an error was planted.
pub(crate) fn has(plant: Plant) -> bool {
    PLANTED.get() == Some(plant)
}

/// What a test does to a coded message, which begins with its prefix, before its checksum is made.
#[cfg(test)]
pub(crate) type Damage = fn(&mut Vec<u8>);

#[cfg(test)]
static DAMAGE: Mutex<Option<(f32, Damage)>> = Mutex::new(None);

/// From now on this process damages what it encodes of buffers whose first element is `mark`.
#[cfg(test)]
pub(crate) fn plant_damage(mark: f32, damage: Damage) {
    *DAMAGE.lock().unwrap() = Some((mark, damage));
}

/// Damages a coded message of elements of which this is the first, if it is to be.
#[cfg(test)]
pub(crate) fn damage(first: f32, coded: &mut Vec<u8>) {
    match *DAMAGE.lock().unwrap() {
        Some((mark, damage)) if mark == first => damage(coded),
        _ => {}
    }
}
