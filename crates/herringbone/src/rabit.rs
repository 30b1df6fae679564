//! Programs that continue after the loss of a process, with the calls of RABIT.
//!
//! A program joins with [`Rabit::init`], loads the last checkpoint, and ends each version of its model with
//! [`checkpoint`](Rabit::checkpoint). If one of its processes ends, the others wait in their next call until it was
//! started again. The new process loads the last checkpoint. The calls that the others have made since then return at
//! once, with the results that they keep; afterwards all continue together. [`core::replay`](crate::core::replay)
//! explains how they agree.
//!
//! ```no_run
//! use herringbone::{ReduceOp, rabit::Rabit};
//!
//! fn main() -> Result<(), herringbone::Error> {
//!     let mut rabit = Rabit::init()?; // RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//!     let mut model = match rabit.load_checkpoint()? {
//!         Some(models) => f64::from_le_bytes(models.global[..8].try_into().unwrap()),
//!         None => 0.0,
//!     };
//!     while rabit.version() < 100 {
//!         let mut sum = [0.0];
//!         // The input is made only if the result is not there yet.
//!         rabit.all_reduce_prepared(&mut sum, ReduceOp::Sum, |sum| sum[0] = model + 1.0)?;
//!         model = sum[0] / f64::from(rabit.size());
//!         rabit.checkpoint(model.to_le_bytes())?;
//!     }
//!     rabit.finalize()
//! }
//! ```
//! `herringbone launch --max-attempts 20 -n 4 ./program` starts it, and starts again each process that ends with a failure.
//!
//! **What a program promises.** All ranks make the same calls in the same order. A process that starts again repeats
//! the calls that its predecessor made since the checkpoint. The global model is the same on all ranks.
//!
//! **What is kept**, in memory: the last checkpoint on each rank; a rank's local model on the [next
//! ranks](RabitOptions::local_replica), too; the results of the calls since the last checkpoint. So any number of
//! processes can end, at any time, even rank 0's, as long as one process lives that has what another one needs. If all
//! end, the program starts from the beginning. A process has to start again at its place: the listener at rank 0's
//! address is found only there.

mod calls;
mod models;
mod options;
mod pool;
mod recovery;
mod slices;
mod waiting;

pub use calls::RabitCollective;
pub use models::RabitModels;
pub use options::RabitOptions;
pub use slices::RabitSlice;

use crate::{
    Communicator, Config, Error, ErrorKind, Result,
    config::WaitLimits,
    core::replay::{Kept, ReplayCall, ReplayError, ReplayGlobal, ReplayMember, ReplayStep},
    sys::region::Region,
};
use models::{LazyModel, copied, kept, owned};
use pool::{KeptBytes, ResultPool};
use std::{fmt, fs, path::PathBuf, sync::Arc, time::Duration};
use waiting::PatientWaits;

/// A process of a program that continues after the loss of a process.
///
/// Calls are made by one thread: they take it exclusively. If a call fails, its result is undefined, and the program
/// ends: it continues when it is started again.
pub struct Rabit {
    comm: Communicator,
    member: ReplayMember<KeptBytes>,
    pool: Arc<ResultPool>,
    options: RabitOptions,
    /// The program's model, if the last checkpoint was lazy.
    lazy: Option<LazyModel>,
    /// Where the one that starts processes again looks for the version.
    progress: Option<PathBuf>,
    waiting: PatientWaits,
    /// What is done with each communicator of the job.
    on_forming: Option<fn(&Communicator)>,
    /// A collective has begun and waits for the program's input.
    awaits_input: bool,
    has_warned: bool,
}

impl Rabit {
    /// Joins the job that the environment describes, as [`Communicator::from_env`] does, or continues in it.
    ///
    /// # Errors
    /// As [`Communicator::from_env`]; [`ErrorKind::Replay`] if the others cannot give the data that a new process
    /// needs.
    pub fn init() -> Result<Self> {
        Self::init_with(RabitOptions::from_env()?)
    }

    /// As [`init`](Self::init), with other options. They are the same on all ranks.
    ///
    /// # Errors
    /// As [`init`](Self::init).
    pub fn init_with(options: RabitOptions) -> Result<Self> {
        let config = match Config::from_env() {
            Ok(config) => config,
            // It tells the others why this rank does not come.
            Err(_) => return Self::over(Communicator::from_env()?, options),
        };
        let timeout = config.waits.timeout;
        // Who starts again waits for the others: they come once they have computed what they are at.
        let patience = timeout.max(options.recovery_timeout);
        let waiting = PatientWaits::default();
        let within = |left| Config { waits: WaitLimits { timeout: left, ..config.waits }, ..config.clone() };
        let comm = match options::attempt() {
            0 => waiting.form_first(timeout, |left| Communicator::connect(within(left))),
            _ => waiting.form_again(config.rank, patience, |left| Communicator::connect_again(within(left))),
        }?;
        comm.set_timeout(timeout);
        Self::over(comm, options)
    }

    /// Takes over the communicator of all ranks of a job, which must not be used otherwise. Ranks that are threads of
    /// one process can make all calls, but do not survive a loss.
    ///
    /// # Errors
    /// As [`init`](Self::init).
    pub fn over(comm: Communicator, options: RabitOptions) -> Result<Self> {
        let member = ReplayMember::new(comm.rank(), comm.size(), options.settings());
        let progress = options::progress_file();
        let (pool, waiting) = (Arc::<ResultPool>::default(), PatientWaits::default());
        let mut rabit = Self {
            comm,
            member,
            pool,
            options,
            lazy: None,
            progress,
            waiting,
            on_forming: None,
            awaits_input: false,
            has_warned: false,
        };
        rabit.begin_call(ReplayCall::Join, "init")?;
        rabit.run_to_end("init")?;
        Ok(rabit)
    }

    /// This process's rank.
    pub fn rank(&self) -> u32 {
        self.comm.rank()
    }

    /// How many ranks there are.
    pub fn size(&self) -> u32 {
        self.comm.size()
    }

    /// Whether there are other ranks.
    pub fn is_distributed(&self) -> bool {
        self.size() > 1
    }

    /// The name of this process's host.
    pub fn processor_name(&self) -> String {
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    }

    /// Prints a line for people, with this process's rank: on standard error, which launchers collect. RABIT sends it to its tracker.
    pub fn tracker_print(&self, line: &str) {
        eprintln!("[{}] {}", self.rank(), line.trim_end_matches('\n'));
    }

    /// How many checkpoints there are.
    pub fn version(&self) -> u32 {
        self.member.version()
    }

    /// How many bytes of results this rank keeps for others.
    pub fn kept_bytes(&self) -> u64 {
        self.member.kept_bytes()
    }

    /// The timeout of a call, without the time in which processes are started again.
    pub fn set_timeout(&self, timeout: Duration) {
        self.comm.set_timeout(timeout);
    }

    /// While a call waits for others, or for a process to be started again, this is called now and then: every tenth of
    /// a second, or every three. If it fails, the call fails with its error. For programs that a person might want to
    /// end.
    pub fn ask_while_waiting(&mut self, goes_on: impl Fn() -> Result<()> + Send + 'static) {
        self.waiting = PatientWaits::asking(goes_on);
    }

    /// Hands over the communicator of the job: at once, and again whenever the job re-forms. For programs that show the
    /// state of a process.
    pub fn on_forming(&mut self, on_forming: fn(&Communicator)) {
        on_forming(&self.comm);
        self.on_forming = Some(on_forming);
    }

    /// The last checkpoint, or `None` if there is none: the program begins. Calls before this one are not part of a version: a new
    /// process gets their results by the places in the program from which it makes them.
    ///
    /// # Errors
    /// [`ErrorKind::Replay`] after calls of a version.
    pub fn load_checkpoint(&mut self) -> Result<Option<RabitModels>> {
        self.begin_call(ReplayCall::Load, "load_checkpoint")?;
        self.run_to_end("load_checkpoint")?;
        self.loaded()
    }

    /// Ends a version: a process that starts from now on begins with this model, which is the same on all ranks. Returns when all ranks
    /// have called it. A vector is kept as it is, of anything else a copy.
    ///
    /// # Errors
    /// [`ErrorKind::Replay`] if the ranks have made different calls; else see [`ErrorKind`].
    pub fn checkpoint(&mut self, global: impl Into<Vec<u8>>) -> Result<()> {
        self.checkpoint_regions(owned(global.into()), None)
    }

    /// As [`checkpoint`](Self::checkpoint), with a model that only this rank has. All ranks have one, or none. The [next
    /// ranks](RabitOptions::local_replica) keep copies of it.
    ///
    /// # Errors
    /// As [`checkpoint`](Self::checkpoint).
    pub fn checkpoint_local(&mut self, global: impl Into<Vec<u8>>, local: impl Into<Vec<u8>>) -> Result<()> {
        self.checkpoint_regions(owned(global.into()), Some(owned(local.into())))
    }

    /// As [`checkpoint`](Self::checkpoint) and [`checkpoint_local`](Self::checkpoint_local), with memory that is not
    /// written any more. It is kept without a copy.
    ///
    /// # Errors
    /// As [`checkpoint`](Self::checkpoint).
    pub fn checkpoint_regions(&mut self, global: Region, local: Option<Region>) -> Result<()> {
        self.end_version(
            ReplayGlobal::Stored(kept(global.into())),
            local.map(|local| kept(local.into())),
            None,
        )
    }

    /// As [`checkpoint`](Self::checkpoint), with a model that stays where it is: `save` makes bytes of it, and is
    /// called only if a process is lost. From now on the program is allowed to change the model only between the last
    /// call of a version and the checkpoint that ends it.
    ///
    /// # Errors
    /// As [`checkpoint`](Self::checkpoint).
    pub fn lazy_checkpoint(&mut self, save: impl Fn() -> Result<Vec<u8>> + Send + 'static) -> Result<()> {
        self.end_version(ReplayGlobal::Lazy, None, Some(LazyModel::new(save)))
    }

    /// Returns when all ranks have reached their end, and leaves the job. Until then each of them helps others to
    /// recover.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub fn finalize(mut self) -> Result<()> {
        self.begin_call(ReplayCall::Finalize, "finalize")?;
        self.run_to_end("finalize")?;
        // All have what they came for: who does not hear the goodbye loses nothing.
        let _unheard = self.comm.close();
        Ok(())
    }

    fn loaded(&self) -> Result<Option<RabitModels>> {
        let (global, local) = self.member.loaded();
        let Some(global) = global else { return Ok(None) };
        let global = match global {
            ReplayGlobal::Stored(kept) => copied(kept)?,
            ReplayGlobal::Lazy => self.lazy_bytes()?,
        };
        let local = local.map(copied).transpose()?;
        Ok(Some(RabitModels { version: self.version(), global, local }))
    }

    pub(super) fn lazy_bytes(&self) -> Result<Vec<u8>> {
        self.lazy.as_ref().map_or_else(|| Err(Error::new(ErrorKind::Closed)), LazyModel::bytes)
    }

    fn end_version(
        &mut self,
        global: ReplayGlobal<KeptBytes>,
        local: Option<Kept<KeptBytes>>,
        lazy: Option<LazyModel>,
    ) -> Result<()> {
        self.begin_call(ReplayCall::Checkpoint { global, local }, "checkpoint")?;
        // In a checkpoint nobody is asked for the model before it any more.
        self.lazy = lazy;
        self.pool.drop_unused();
        self.run_to_end("checkpoint")?;
        self.has_warned = false;
        self.say_version();
        Ok(())
    }

    /// For the one that starts processes again: a process that ends after this has come further than the one before it.
    fn say_version(&self) {
        self.note_progress(&self.version().to_string());
    }

    /// All ranks have come to their end. One that ends after the others have left need not start again.
    pub(super) fn say_complete(&self) {
        self.note_progress("complete");
    }

    fn note_progress(&self, progress: &str) {
        let Some(path) = &self.progress else { return };
        let written = path.with_extension("new");
        let said = fs::write(&written, progress).and_then(|()| fs::rename(&written, path));
        if let Err(error) = said {
            let who = format!("rank {}", self.rank());
            crate::log::warn(&who, format_args!("{} cannot be written: {error}", path.display()));
        }
    }

    fn begin_call(&mut self, call: ReplayCall<KeptBytes>, operation: &str) -> Result<()> {
        self.awaits_input = false;
        self.member.begin(call).map_err(|problem| self.stopped(problem, operation))
    }

    /// Goes on until a call is over that has no input.
    fn run_to_end(&mut self, operation: &str) -> Result<()> {
        while !matches!(self.next_step(operation)?, ReplayStep::Done) {}
        Ok(())
    }

    fn stopped(&self, problem: ReplayError, operation: &str) -> Error {
        Error::new(ErrorKind::Replay { problem }).about(self.rank(), operation)
    }
}

impl fmt::Debug for Rabit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rabit")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .field("version", &self.version())
            .finish_non_exhaustive()
    }
}
