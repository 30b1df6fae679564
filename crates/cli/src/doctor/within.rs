//! Questions that might never be answered: each has a thread, and all have one deadline.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// A question.
pub(super) type TimedQuestion<T> = Box<dyn FnOnce() -> T + Send>;

/// The answers that come in time, in the order of the questions. A thread that has none by then is left alone, and ends with
/// the process at the latest. Where no thread can be started there is no answer.
pub(super) fn answers<T: Send + 'static>(
    questions: impl IntoIterator<Item = TimedQuestion<T>>,
    within: Duration,
) -> Vec<Option<T>> {
    let deadline = Instant::now() + within;
    let ask = |question: TimedQuestion<T>| {
        let (sender, receiver) = channel();
        let answer = move || drop(sender.send(question()));
        let thread = thread::Builder::new().name("hb-doctor".to_owned()).spawn(answer);
        thread.ok().map(|_| receiver)
    };
    let asked: Vec<_> = questions.into_iter().map(ask).collect();
    let left = || deadline.saturating_duration_since(Instant::now());
    asked.into_iter().map(|answer| answer?.recv_timeout(left()).ok()).collect()
}

/// The answer to one question, if it comes in time.
pub(super) fn answer<T: Send + 'static>(
    question: impl FnOnce() -> T + Send + 'static,
    within: Duration,
) -> Option<T> {
    answers([Box::new(question) as TimedQuestion<T>], within).pop().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_without_an_answer_holds_up_no_other() {
        let (_kept, never) = channel::<()>();
        let hangs: TimedQuestion<u32> = Box::new(move || never.recv().map_or(0, |()| 1));
        let all = answers([hangs, Box::new(|| 2), Box::new(|| 3)], Duration::from_secs(2));
        assert_eq!(all, [None, Some(2), Some(3)]);
    }
}
