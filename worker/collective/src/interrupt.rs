//! Giving up a group, formed or still forming, on the word of somebody who is no part of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{control::Control, verdict::Verdict};

/// A rank's way out of all its groups at once, for whoever knows that they cannot go on: every wait of the rank ends with
/// [`crate::GroupError::Aborted`], by nobody, and so do those of the others.
///
/// It keeps the control pages of the groups mapped; drop it with them.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<Mutex<Watched>>);

#[derive(Debug, Default)]
struct Watched {
    is_raised: bool,
    controls: Vec<Control>,
}

impl Interrupt {
    /// Gives up all groups that were joined with it, and those that will be. Can be repeated.
    pub fn raise(&self) {
        let mut watched = self.lock();
        watched.is_raised = true;
        for control in watched.controls.drain(..) {
            control.give_up(&Verdict::Interrupted);
        }
    }

    pub(crate) fn watch(&self, control: &Control) {
        let mut watched = self.lock();
        if watched.is_raised {
            control.give_up(&Verdict::Interrupted);
        } else {
            watched.controls.push(control.clone());
        }
    }

    /// A panic while it was held leaves it whole: every change is one statement.
    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
