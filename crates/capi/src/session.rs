//! RABIT's interface has one session for a process: between its init and its finalize.

use crate::{
    failure::{InterfaceFailure, printed},
    pointers::{LentMemory, ModelSaver},
    registry::Registry,
};
use herringbone::rabit::{Rabit, RabitCollective, RabitModels, RabitOptions};
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, TryLockError,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

/// A call that waits for its input, and its memory.
pub(crate) struct BegunCall {
    pub(crate) call: RabitCollective,
    pub(crate) lent: LentMemory,
}

/// What one call after the other uses.
struct SessionState {
    rabit: Rabit,
    begun: Option<BegunCall>,
    /// What the program has pointers to.
    loaded: Option<RabitModels>,
}

/// A process's part in a program of RABIT's interface.
pub(crate) struct RabitSession {
    rank: u32,
    size: u32,
    version: AtomicU32,
    /// The text of a failure of which no code has told the program.
    silent: OnceLock<String>,
    state: Mutex<Option<SessionState>>,
}

/// The sessions: a forked child does not use its parent's.
static SESSIONS: Registry<Arc<RabitSession>> = Registry::new("session of rabit", "finalized", 3);
/// The handle of the one that is; 0 for none.
static CURRENT: AtomicU64 = AtomicU64::new(0);

/// Joins the job, or continues in it.
///
/// # Errors
/// If this process has joined already, and those of the engine.
pub(crate) fn init(arguments: &[String]) -> Result<(), InterfaceFailure> {
    let before = CURRENT.load(Ordering::Acquire);
    if before != 0 && SESSIONS.find(before).is_ok() {
        return Err(InterfaceFailure::handle("init of rabit was called before: call finalize first"));
    }
    let options = RabitOptions::from_env()?.with_arguments(arguments.iter().map(String::as_str))?;
    let mut rabit = Rabit::init_with(options)?;
    rabit.on_forming(herringbone_admin::attach);
    let (rank, size, version) = (rabit.rank(), rabit.size(), AtomicU32::new(rabit.version()));
    let state = Mutex::new(Some(SessionState { rabit, begun: None, loaded: None }));
    let session = RabitSession { rank, size, version, silent: OnceLock::new(), state };
    let handle = SESSIONS.add(Arc::new(session));
    CURRENT.store(handle, Ordering::Release);
    Ok(())
}

/// The session.
///
/// # Errors
/// If there is none, or it is the parent's.
pub(crate) fn current() -> Result<Arc<RabitSession>, InterfaceFailure> {
    match CURRENT.load(Ordering::Acquire) {
        0 => Err(InterfaceFailure::handle("init of rabit was not called, or finalize was: call init first")),
        handle => SESSIONS.find(handle),
    }
}

/// Waits until all ranks have come to their end, and leaves. The session is over even if that fails.
///
/// # Errors
/// If there is none, an earlier failure, and those of the engine.
pub(crate) fn finalize() -> Result<(), InterfaceFailure> {
    let session = current()?;
    let state = session.state()?.take();
    let handle = CURRENT.swap(0, Ordering::AcqRel);
    let _over_already = SESSIONS.remove(handle);
    // A rank that has failed does not come to its end: the others wait until it starts again.
    session.check()?;
    let state = state.ok_or_else(|| InterfaceFailure::handle("finalize of rabit was called before"))?;
    Ok(state.rabit.finalize()?)
}

/// Makes a call whose function returns nothing, and whose result the program takes for granted: after a failure all later ones fail,
/// so that no rank goes on with what it does not have.
pub(crate) fn required(call: impl FnOnce() -> Result<(), InterfaceFailure>) {
    printed(|| {
        call().inspect_err(|failure| {
            if let Ok(session) = current() {
                // The first one is the cause of those that follow.
                let _first = session.silent.set(failure.text().to_owned());
            }
        })
    });
}

impl RabitSession {
    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    pub(crate) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// Begins a collective: whether the program has to give its input now, and finish it.
    pub(crate) fn begin(&self, begun: BegunCall) -> Result<bool, InterfaceFailure> {
        self.with(|state| {
            state.begun = None;
            let needs_input = state.rabit.begin(&begun.call)?;
            state.begun = needs_input.then_some(begun);
            Ok(needs_input)
        })
    }

    /// Runs the collective that has begun.
    pub(crate) fn finish(&self) -> Result<(), InterfaceFailure> {
        self.with(|state| {
            let begun = state.begun.take().ok_or_else(|| {
                InterfaceFailure::argument(
                    "no call of rabit waits for its input: a function that prepares the input must make no call of its own",
                )
            })?;
            let result = state.rabit.finish(&begun.call);
            begun.lent.give_back();
            Ok(result?)
        })
    }

    /// Loads the last checkpoint, and shows it; it stays where it is until the next one is loaded.
    pub(crate) fn load(&self, show: impl FnOnce(Option<&RabitModels>)) -> Result<(), InterfaceFailure> {
        self.with(|state| {
            state.loaded = state.rabit.load_checkpoint()?;
            show(state.loaded.as_ref());
            Ok(())
        })
    }

    /// Ends a version.
    pub(crate) fn checkpoint(&self, global: Vec<u8>, local: Option<Vec<u8>>) -> Result<(), InterfaceFailure> {
        self.with(|state| {
            match local {
                Some(local) => state.rabit.checkpoint_local(global, local)?,
                None => state.rabit.checkpoint(global)?,
            }
            Ok(())
        })
    }

    /// Ends a version, with a model that stays where it is.
    pub(crate) fn lazy_checkpoint(&self, saver: ModelSaver) -> Result<(), InterfaceFailure> {
        self.with(|state| Ok(state.rabit.lazy_checkpoint(move || saver.bytes())?))
    }

    /// Prints a line with the rank.
    pub(crate) fn print(&self, line: &str) -> Result<(), InterfaceFailure> {
        self.with(|state| {
            state.rabit.tracker_print(line);
            Ok(())
        })
    }

    /// The name of this host.
    pub(crate) fn processor_name(&self) -> Result<String, InterfaceFailure> {
        self.with(|state| Ok(state.rabit.processor_name()))
    }

    fn check(&self) -> Result<(), InterfaceFailure> {
        self.silent.get().map_or(Ok(()), |text| {
            let text = format!("a call before this one failed, so end the program with a failure: {text}");
            Err(InterfaceFailure::handle(text))
        })
    }

    fn with<T>(
        &self,
        call: impl FnOnce(&mut SessionState) -> Result<T, InterfaceFailure>,
    ) -> Result<T, InterfaceFailure> {
        self.check()?;
        let mut state = self.state()?;
        let state = state.as_mut().ok_or_else(|| {
            InterfaceFailure::handle("finalize of rabit was called before: call init first")
        })?;
        let result = call(state);
        self.version.store(state.rabit.version(), Ordering::Release);
        result
    }

    fn state(&self) -> Result<MutexGuard<'_, Option<SessionState>>, InterfaceFailure> {
        self.state.try_lock().map_err(|error| {
            InterfaceFailure::handle(match error {
                TryLockError::WouldBlock => {
                    "another call of rabit runs: make all calls from one thread, and none where a model is saved"
                }
                TryLockError::Poisoned(_) => "a call of rabit panicked: start the program again",
            })
        })
    }
}
