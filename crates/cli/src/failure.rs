//! Why a verb could not run to its end, in words that say what to do next.

use herringbone::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::{fmt::Display, io, process::ExitStatus};

/// Exit code: a check failed.
pub(crate) const CHECK: i32 = 1;
/// Exit code: the command line or a setting cannot be used.
pub(crate) const USAGE: i32 = 2;
/// Exit code: a failure while running.
pub(crate) const RUN: i32 = 3;

/// Where an option does nothing for the collective.
pub(crate) const ABOUT_COLLECTIVE: &str = "leave it out, or say with --collective what it is meant for";
/// Where an option does nothing for the algorithm.
pub(crate) const ABOUT_ALGORITHM: &str = "leave it out, or say with --algorithm what it is meant for";

/// A verb's failure; [`code`](Self::code) is the exit code.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Arguments that fit the grammar and still cannot be used.
    #[error("{problem}; {hint}")]
    Usage { problem: String, hint: &'static str },
    /// A simulation that never ends, which is a fault of this library; the text names the ranks that wait.
    #[error("{problem}")]
    Stalled { problem: String },
    /// What the engine reported. Its text names itself, the ranks and the next thing to do.
    #[error(transparent)]
    Engine(#[from] herringbone::Error),
    /// Settings that cannot be used; each text names one.
    #[error("{}", lines(.0))]
    Settings(Vec<herringbone::Error>),
    /// No process that was asked has answered; says why of each.
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
    /// The rank of a launched program that failed first; it has said why.
    #[error("rank {rank} failed first, with {status}; its own message is above, if it left one")]
    Rank { rank: usize, status: ExitStatus },
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
            Some((name, _)) => {
                Err(Self::Usage { problem: format!("{name} changes nothing about {asked}"), hint })
            }
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
            // As a shell has it: a signal counts from 128.
            Self::Rank { status, .. } | Self::Stopped { status, .. } => {
                status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
            }
            _ => RUN,
        }
    }

    /// Whether the reader of standard output has left, which is its right (`herringbone verify | head`).
    pub(crate) fn is_closed_output(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// Each on a line of its own.
fn lines(errors: &[herringbone::Error]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
