//! Collectives as operations of a dependency engine.

use super::{
    buffer::EngineBuffer,
    completer::Completer,
    engine::{DependencyEngine, DependencyResult, Uses, Variable},
    scheduler::OnComplete,
};
use crate::{
    communicator::Communicator,
    core::{
        collective::Collective,
        element::{Element, ReduceOp},
    },
    request::Request,
    sys::{plain::Plain, region::Region},
    work::Pending,
};
use std::{error::Error, fmt, sync::Arc};

impl DependencyEngine {
    /// The variable that stands for the order in which collectives of a communicator are issued. Operations that issue one
    /// mutate it until they have: so all ranks issue alike, whatever is ready first.
    pub fn order_of(&self, communicator: &Communicator) -> Variable {
        self.order(std::ptr::from_ref(communicator.parts().1).addr())
    }

    /// Folds a buffer over all ranks, as [`Communicator::all_reduce`], when it and the communicator are free.
    ///
    /// The communicator is mutated until the collective is issued, the buffer until it is over. A collective that is skipped,
    /// since its buffer is spoiled, spoils the communicator: later ones would meet other ranks' earlier ones.
    ///
    /// # Errors
    /// As [`push`](Self::push). Errors of the collective come at the wait for the buffer.
    pub fn all_reduce<T: Element + Plain>(
        &self,
        communicator: &Communicator,
        buffer: &EngineBuffer<T>,
        op: ReduceOp,
        priority: i32,
    ) -> DependencyResult<()> {
        let order = self.order_of(communicator);
        let uses =
            Uses { name: Some("all_reduce"), reads: &[], mutates: &[&order, buffer.variable()], priority };
        let (communicator, buffer, completer) =
            (communicator.clone(), buffer.clone(), self.completer.clone());
        let issued = order.clone();
        self.push_async_as(uses, move |done| {
            let values = std::mem::take(&mut *buffer.values());
            let count = values.len();
            let owned = Region::own(values);
            let region = owned.region().clone();
            let request = Request::new(Collective::AllReduce, T::DTYPE, count, region.clone(), region);
            match communicator.submit(request.op(op).priority(priority)) {
                Err(error) => {
                    *buffer.values() = owned.take();
                    done.fail(error);
                }
                Ok(pending) => {
                    // It is this engine's.
                    let _released = done.release(&issued);
                    let end = move |result: crate::Result<()>| match result {
                        Ok(()) => {
                            *buffer.values() = owned.take();
                            done.complete();
                        }
                        Err(error) => done.fail(error),
                    };
                    // If there is no thread to tell of it, the operation fails as its ticket is dropped.
                    let _failed = completer.follow(pending, Box::new(end));
                }
            }
        })
    }

    /// A handle that ends an operation when a collective that it has issued is over.
    pub fn follower(&self) -> Follower {
        Follower(self.completer.clone())
    }
}

/// Ends operations when the collectives that they have issued are over; see [`DependencyEngine::follower`].
#[derive(Clone)]
pub struct Follower(Arc<Completer>);

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower").finish_non_exhaustive()
    }
}

impl Follower {
    /// Ends the operation of `done` as `pending` ends. `boxed` makes the operation's error of the collective's.
    pub fn follow(
        &self,
        done: OnComplete,
        pending: Pending,
        boxed: impl FnOnce(crate::Error) -> Box<dyn Error + Send + Sync> + Send + 'static,
    ) {
        if done.scheduler().is_some_and(|scheduler| scheduler.is_forked()) {
            return;
        }
        let end = move |result: crate::Result<()>| match result {
            Ok(()) => done.complete(),
            Err(error) => done.fail(boxed(error)),
        };
        // As above.
        let _failed = self.0.follow(pending, Box::new(end));
    }
}
