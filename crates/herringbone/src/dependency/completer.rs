//! Collectives that are under way, and the actions at their ends.

use crate::{Result, work::Pending};
use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

type Then = Box<dyn FnOnce(Result<()>) + Send>;

/// The token that ends the thread.
const CLOSE: u64 = u64::MAX;

/// Does what follows the end of a collective, on a thread that begins with the first one.
#[derive(Default)]
pub(crate) struct Completer {
    state: Mutex<Followed>,
}

#[derive(Default)]
struct Followed {
    sender: Option<Sender<u64>>,
    next: u64,
    pending: HashMap<u64, (Pending, Then)>,
}

impl Completer {
    fn lock(&self) -> MutexGuard<'_, Followed> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `then` once `pending` is over, on another thread.
    ///
    /// # Errors
    /// If the system has no room for that thread.
    pub(crate) fn follow(self: &Arc<Self>, pending: Pending, then: Then) -> io::Result<()> {
        let mut state = self.lock();
        let sender = match &state.sender {
            Some(sender) => sender.clone(),
            None => {
                let (sender, receiver) = mpsc::channel();
                let own = self.clone();
                let thread = thread::Builder::new().name("herringbone-dep-ends".to_owned());
                thread.spawn(move || own.run(&receiver))?;
                state.sender.insert(sender).clone()
            }
        };
        let token = state.next;
        state.next += 1;
        // The thread looks for it only when it can have the lock.
        pending.notify(sender, token);
        state.pending.insert(token, (pending, then));
        Ok(())
    }

    fn run(&self, receiver: &Receiver<u64>) {
        for token in receiver.iter().take_while(|token| *token != CLOSE) {
            let followed = self.lock().pending.remove(&token);
            if let Some((pending, then)) = followed {
                then(pending.wait());
            }
        }
    }

    /// Ends the thread. What follows on collectives that are still under way never happens.
    pub(crate) fn close(&self) {
        let (sender, pending) = {
            let mut state = self.lock();
            (state.sender.take(), std::mem::take(&mut state.pending))
        };
        if let Some(sender) = sender {
            // A thread that has ended needs no word.
            let _ended = sender.send(CLOSE);
        }
        drop(pending);
    }
}
