//! Failures of verbs, with hints about the next step.

use herringbone::ErrorKind;
use std::fmt::{self, Display};
use std::os::unix::process::ExitStatusExt;
use std::{io, process::ExitStatus};

/// Exit code: a check failed.
pub(crate) const CHECK: i32 = 1;
/// Exit code: the command line or a setting cannot be used.
pub(crate) const USAGE: i32 = 2;
/// Exit code: a failure while running.
pub(crate) const RUN: i32 = 3;

/// Where an option does nothing for the collective.
pub(crate) const ABOUT_COLLECTIVE: &str = "leave it out, or pass the --collective that it is for";
/// Where an option does nothing for the algorithm.
pub(crate) const ABOUT_ALGORITHM: &str = "leave it out, or pass the --algorithm that it is for";

/// A verb's failure; [`code`](Self::code) is the exit code.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Arguments that can be parsed but not used.
    #[error("{problem}; {hint}")]
    Usage { problem: String, hint: &'static str },
    /// A simulation that never ends, which is a fault of this library; the text names the ranks that wait.
    #[error("{problem}")]
    Stalled { problem: String },
    /// An error of the engine, whose text names itself, the ranks and the next step.
    #[error(transparent)]
    Engine(#[from] herringbone::Error),
    /// Settings that cannot be used; each text names one.
    #[error("{}", lines(.0))]
    Settings(Vec<herringbone::Error>),
    /// No process has answered; the text has the reason of each.
    #[error("{problem}\n{hint}")]
    Unanswered { problem: String, hint: &'static str },
    /// The operating system refused something.
    #[error("{action}: {source}")]
    System { action: String, source: io::Error },
    /// Standard output could not be written.
    #[error("cannot write the results: {0}")]
    Output(#[from] io::Error),
    /// A process that was started here failed; it has said why.
    #[error("{who} ended with {status}; its own message is above")]
    Child { who: String, status: ExitStatus },
    /// The rank of a launched program that ended its job.
    #[error("{0}")]
    Rank(RankFailure),
    /// A signal to this process ended the ranks of a launched program.
    #[error("ended by {signal}")]
    Stopped { signal: &'static str, status: ExitStatus },
}

impl Failure {
    /// A refusal of the operating system while doing `action`.
    pub(crate) fn system(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::System { action, source }
    }

    /// Refuses the first option that is `true`: it would change nothing about what was asked for.
    pub(crate) fn if_useless(
        options: &[(&str, bool)],
        asked: impl Display,
        hint: &'static str,
    ) -> Result<(), Self> {
        match options.iter().find(|(_, useless)| *useless) {
            Some((name, _)) => Err(Self::Usage { problem: format!("{name} has no effect on {asked}"), hint }),
            None => Ok(()),
        }
    }

    /// The exit code that tells it apart for scripts.
    pub(crate) fn code(&self) -> i32 {
        match self {
            Self::Usage { .. } | Self::Settings(_) => USAGE,
            Self::Engine(error) => match error.kind() {
                ErrorKind::Config { .. } | ErrorKind::Unsupported { .. } => USAGE,
                _ => RUN,
            },
            Self::Child { status, .. } if status.code() == Some(USAGE) => USAGE,
            Self::Rank(failure) => shell_code(failure.status()),
            Self::Stopped { status, .. } => shell_code(*status),
            _ => RUN,
        }
    }

    /// Whether the reader of standard output has left, which is its right (`herringbone verify | head`).
    pub(crate) fn is_closed_output(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// As in a shell: 128 plus the number of the signal.
fn shell_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// The failures of a rank of a launched program since its last progress; its text tells what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankFailure {
    /// The rank.
    pub rank: usize,
    /// The end of each start since then, in order; at least one.
    pub endings: Vec<ExitStatus>,
    /// Whether all other ranks have succeeded and left, so that it would wait for them forever.
    pub others_have_left: bool,
}

impl RankFailure {
    /// How the last of these starts ended.
    pub(crate) fn status(&self) -> ExitStatus {
        self.endings.last().copied().unwrap_or_default()
    }

    /// As `signal: 9 (SIGKILL), 2 times; exit status: 7`: equal endings in a row stand there once.
    fn listed(&self) -> String {
        let each = self.endings.chunk_by(|one, next| one == next).map(|alike| match alike.len() {
            1 => alike[0].to_string(),
            count => format!("{}, {count} times", alike[0]),
        });
        each.collect::<Vec<_>>().join("; ")
    }
}

impl fmt::Display for RankFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, failures, listed) = (self.rank, self.endings.len(), self.listed());
        if self.others_have_left {
            return write!(
                f,
                "rank {rank} ended with {listed} after the other ranks had left, so it is not restarted. All ranks have reached \
                 the program's end; only the work of rank {rank} after that point is missing"
            );
        }
        if failures == 1 {
            return write!(f, "rank {rank} failed first, with {listed}; its own message, if any, is above");
        }
        write!(
            f,
            "rank {rank} failed {failures} times without progress in between, with {listed}; its own messages, if any, are above. \
             Correct the program, or raise --max-attempts. If the program does make progress, let it write \
             the number of each checkpoint to the file in HERRINGBONE_PROGRESS_FILE, like RABIT's checkpoint"
        )
    }
}

/// Each on a line of its own.
fn lines(errors: &[herringbone::Error]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
