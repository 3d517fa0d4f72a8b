//! From the agent's configuration to an exit status: connects, trains, and says how it ended.

use std::panic;
use std::time::Duration;

use lockstep_api::{FailureCode, LogLevel, LogSource, Phase, RankConfig, RankMessage};
use lockstep_ddp::GroupError;
use lockstep_models::Model;
use lockstep_service::chain;
use lockstep_shm::FlightRecord;

use crate::failure::Failure;
use crate::faults::Faults;
use crate::link::{AgentLink, STATUS_PANIC, leave};
use crate::position::Position;
use crate::recover::Joining;
use crate::seat::Seat;
use crate::timeline::Timeline;
use crate::train::Trainer;
use crate::{group, setup};

/// Exit status when training is over and the agent has said that everything is safe.
const STATUS_DONE: u8 = 0;
/// Exit status after a failure was reported.
const STATUS_FAILED: u8 = 1;
/// For last words after a panic.
const PANIC_FLUSH_LIMIT: Duration = Duration::from_secs(1);
/// For the timeline of a step that failed: well within what the agent grants after a failure.
const FAILED_TIMELINE_LIMIT: Duration = Duration::from_millis(200);

/// Trains as one rank. Returns the exit status.
///
/// # Errors
/// When there is nobody to report to: no agent, no flight record.
pub fn run(config: &RankConfig) -> anyhow::Result<u8> {
    use anyhow::Context as _;
    let rank = u32::try_from(config.rank.0).context("the rank is negative")?;
    let timeout = config.spec.collective_timeout();
    let link = AgentLink::connect(&config.socket_path, config.rank, &config.attempt_key, timeout)
        .with_context(|| format!("connecting to the agent at {}", config.socket_path))?;
    let record = FlightRecord::create(&config.flight_record_path, rank)
        .with_context(|| format!("making the flight record {}", config.flight_record_path))?;
    let timeline = Timeline::start(&config.spec.trace, config.rank, &link)
        .context("starting the thread of the timeline")?;
    let position = Position::new(config.rank, record, timeline, Faults::new(config, &link));
    report_panics(&link, &position);
    if train(config, &link, &position).is_err() {
        return Ok(STATUS_FAILED);
    }
    link.send(RankMessage::Done);
    // An agent that is there but never answers has not said that the reports are safe.
    Ok(if link.wait_released(timeout) { STATUS_DONE } else { STATUS_FAILED })
}

/// One group after the other, until training is over or this rank itself is at fault. An error is reported before the group
/// is dropped: the others' errors are its effects and come later.
fn train(config: &RankConfig, link: &AgentLink, position: &Position) -> Result<(), Reported> {
    let timeout = config.spec.collective_timeout();
    let told = |failure: Failure| report(&failure, link, position, timeout);
    let (model, seat) = begin(config).map_err(told)?;
    let (layout, has_norms) = (model.layout().clone(), !model.buffers().params().is_empty());
    let forming = |seat| group::begin_forming(config, seat, &layout, has_norms, (link, position));
    let mut joining = Joining::new(&seat);
    let mut group = forming(seat).map_err(told)?;
    let mut alone =
        Trainer::new(config, link, position, setup::equip(config, model, link).map_err(told)?);
    let trainer = loop {
        position.enter(if joining.is_anew { Phase::Recovering } else { Phase::Forming });
        let formed = group.join().unwrap_or_else(|_| {
            Err(GroupError::InvalidArgument("the thread that forms the group panicked".to_owned()))
        });
        let joined = match formed {
            Ok(reducer) => alone.join(reducer, joining, config.spec.ddp.shard),
            Err(error) if joining.is_anew => {
                Err(Box::new((alone, Failure::of_forming_again(&error))))
            }
            Err(error) => Err(Box::new((alone, Failure::of_group(&error)))),
        };
        let (left, failure) = match joined {
            Err(interrupted) => *interrupted,
            Ok(mut trainer) => match trainer.run() {
                Ok(()) => break trainer,
                // Told while the group is still there.
                Err(failure) if !failure.is_interruption => return Err(told(failure)),
                Err(failure) => (trainer.leave_group(), failure),
            },
        };
        if !failure.is_interruption {
            return Err(told(failure));
        }
        alone = left;
        let Some(seat) = alone.next_seat(joining.generation, &failure) else {
            return Err(Reported);
        };
        joining = Joining::new(&seat);
        group = forming(seat).map_err(told)?;
    };
    position.timeline().finish(timeout);
    trainer.close();
    Ok(())
}

fn begin(config: &RankConfig) -> Result<(Model, Seat), Failure> {
    let rank_error = |message: String| Failure::new(FailureCode::RankError, message);
    let model = Model::new(&config.spec.model).map_err(|error| rank_error(chain(&error)))?;
    let seat = Seat::first(config);
    Ok((model, seat.map_err(|error| rank_error(format!("cannot take this rank's seat: {error}")))?))
}

/// The agent has been told.
struct Reported;

fn report(failure: &Failure, link: &AgentLink, position: &Position, limit: Duration) -> Reported {
    link.log(LogSource::Rank, LogLevel::Error, &failure.to_string());
    link.send(RankMessage::Failed(failure.report(position)));
    position.timeline().finish(FAILED_TIMELINE_LIMIT);
    link.flush(limit);
    Reported
}

/// A panic on any thread ends the rank: the others would wait for it otherwise.
fn report_panics(link: &AgentLink, position: &Position) {
    let (link, position) = (link.clone(), position.clone());
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        print(info);
        let failure =
            Failure::new(FailureCode::RankError, info.to_string()).of_rank(position.rank());
        link.send(RankMessage::Failed(failure.report(&position)));
        link.flush(PANIC_FLUSH_LIMIT);
        leave(STATUS_PANIC);
    }));
}
