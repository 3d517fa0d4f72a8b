//! Which failure is the verdict on a group, and when that is known: see [`crate::verdict`].

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use lockstep_api::AttemptOutcome;

use super::gang::Suspect;
use super::repair::Slots;
use super::words::Effect;
use super::{Attempt, Stepped, Terms};
use crate::lease::delta;
use crate::verdict::{self, Failure, Grade, Standing};

impl Attempt {
    /// Cause and symptom: see [`crate::verdict`].
    pub(super) fn judge(
        mut self,
        failure: Failure,
        mut effects: Vec<Effect>,
        (terms, now): (Terms, DateTime<Utc>),
    ) -> Stepped {
        let is_at_work = self.stage.is_at_work();
        let grade = verdict::grade(&failure.report);
        let is_verdict = is_at_work
            && match (&self.gang.suspect, grade) {
                (_, Grade::Symptom) => false,
                (None, Grade::Cause) => true,
                // Seen where it happened. Whom others miss may only have left because of it.
                (Some(suspect), Grade::Cause) => {
                    failure.report.exit.is_none()
                        || !suspect.was_told_by(failure.node)
                        || verdict::could_be_caused_by(&suspect.failure.report, &failure.report)
                }
            };
        let generation = self.gang.generation;
        if is_at_work && self.is_judged() {
            let report = failure.report.clone();
            effects.push(Effect::File { failure, generation, standing: Standing::Effect });
            // Who is missed is missed again by the next group; who is gone needs a place in it.
            let gone = (BTreeSet::new(), Slots::Same);
            return self.repair_or_end(
                gone,
                &report,
                AttemptOutcome::Failed,
                effects,
                (terms, now),
            );
        }
        if is_verdict {
            let filed = failure.clone();
            effects.push(Effect::File { failure: filed, generation, standing: Standing::Verdict });
            return self.conclude(&failure, effects, (terms, now));
        }
        let suspect = self.gang.suspect.as_ref().filter(|_| is_at_work);
        let stall = suspect.and_then(|it| self.gang.stall_told_by_both(&it.failure, &failure));
        if let Some(stall) = stall {
            effects.push(Effect::File { failure, generation, standing: Standing::Effect });
            return self.conclude_found(stall, effects, (terms, now));
        }
        if is_at_work {
            let suspect = self.gang.suspect.get_or_insert_with(|| Suspect {
                since: now,
                failure: failure.clone(),
                told_by: BTreeSet::new(),
            });
            suspect.told_by.extend(failure.node);
        }
        effects.push(Effect::File { failure, generation, standing: Standing::Effect });
        (self, effects)
    }

    /// Whether it is time to make a verdict of the suspicion, if there is one: nothing has explained it for long enough, or news
    /// has.
    pub(super) fn is_suspicion_over(&self, terms: Terms, now: DateTime<Utc>) -> bool {
        let window = delta(match self.gang.spans_nodes() {
            true => terms.timeouts.snapshot_of_nodes(),
            false => terms.timeouts.snapshot(),
        });
        self.gang.suspect.as_ref().is_some_and(|suspect| {
            let is_known = suspect.since + window <= now || self.gang.is_clear(suspect);
            is_known && self.gang.can_judge(suspect)
        })
    }

    /// The suspect is the verdict.
    pub(super) fn promote(self, mut effects: Vec<Effect>, at: (Terms, DateTime<Utc>)) -> Stepped {
        let Some(suspect) = &self.gang.suspect else { return (self, effects) };
        let better = self.gang.stopped_instead(suspect);
        if let Some(found) = better.or_else(|| self.gang.stall_seen(suspect)) {
            return self.conclude_found(found, effects, at);
        }
        let failure = suspect.failure.clone();
        effects.push(Effect::PromoteSuspect);
        self.conclude(&failure, effects, at)
    }

    /// What no rank could tell is the verdict; what was filed so far are its effects.
    fn conclude_found(
        self,
        found: Failure,
        mut effects: Vec<Effect>,
        at: (Terms, DateTime<Utc>),
    ) -> Stepped {
        let (failure, generation) = (found.clone(), self.gang.generation);
        effects.push(Effect::File { failure, generation, standing: Standing::Verdict });
        self.conclude(&found, effects, at)
    }
}
