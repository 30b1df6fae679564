//! A progress bar for long work, on standard error if that is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, stderr};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What takes less shows nothing.
const SOON: Duration = Duration::from_secs(2);
/// How often the elapsed time moves on.
const TICK: Duration = Duration::from_millis(250);

/// A bar, with the time since it began, that is there from the third second on until it is dropped.
pub(crate) struct LateBar {
    bar: ProgressBar,
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LateBar {
    /// For this many steps.
    pub(crate) fn of(steps: u64) -> Self {
        Self::shown(ProgressBar::new(steps), "{bar:30} {pos}/{len} in {elapsed} {msg}")
    }

    /// Nobody knows how much is to be done.
    pub(crate) fn without_end(message: impl Into<String>) -> Self {
        let progress = Self::shown(ProgressBar::no_length(), "{spinner} {elapsed} {msg}");
        progress.tell(message);
        progress
    }

    fn shown(bar: ProgressBar, template: &str) -> Self {
        bar.set_draw_target(ProgressDrawTarget::hidden());
        bar.set_style(ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar()));
        let (over, is_over) = mpsc::channel::<()>();
        let shown = bar.clone();
        let wait = move || {
            if is_over.recv_timeout(SOON) == Err(RecvTimeoutError::Timeout) {
                shown.set_draw_target(ProgressDrawTarget::stderr());
                while is_over.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                    shown.tick();
                }
            }
        };
        // Without a thread no progress is shown, and the work continues.
        let thread = match stderr().is_terminal() {
            true => thread::Builder::new().name("hb-progress".to_owned()).spawn(wait).ok(),
            false => None,
        };
        Self { bar, over: Some(over), thread }
    }

    /// What is done now.
    pub(crate) fn tell(&self, message: impl Into<String>) {
        self.bar.set_message(message.into());
    }

    /// One step is done.
    pub(crate) fn step(&self) {
        self.bar.inc(1);
    }

    /// Lets `print` write to the terminal without the bar in its way.
    pub(crate) fn beside<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }
}

impl Drop for LateBar {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(thread) = self.thread.take() {
            // It has no result.
            let _ended = thread.join();
        }
        self.bar.finish_and_clear();
    }
}
