//! The conversation with the server: what should run here, that we are alive, and what happens when it is silent.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockstep_api::{
    Assignment, AttemptId, FailureCode, Fence, Generation, HeartbeatRequest, Inventory,
    PollRequest, ProblemCode, Report, RunningAttempt,
};
use lockstep_client::retry::{Backoff, Policy};
use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::attempt::{self, Ending, Positions, Told, meet, own_failure};
use crate::gang::{Action, Local, LocalState, Order, difference, fence_of};
use crate::node::{Node, Note};
use crate::run::Joiner;
use crate::spool::Kept;
use lockstep_service::chain;

/// An answer to a poll that says nothing new and comes sooner than this is not a parked one.
const SHORTEST_PARK: Duration = Duration::from_millis(100);

/// How often the agent looks whether a rank waits for long.
const LOOK_FOR_WAITS: Duration = Duration::from_millis(250);
/// Between two heartbeats at least this passes, whoever waits.
const SHORTEST_BEAT: Duration = Duration::from_millis(500);

/// How long the server may take to hear that the node leaves.
const WITHDRAW_TIMEOUT: Duration = Duration::from_millis(500);

/// How long ranks may take to leave after a checkpoint when the agent is told to stop; then they are killed. With what comes
/// before and after, less than the agent's own grace.
const STOP_LIMIT: Duration = Duration::from_secs(6);

/// Whether the server has heard that the node leaves: then it asks for what runs there to be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Farewell {
    Heard,
    Unheard,
}

/// The attempts whose ranks live here, for heartbeats.
#[derive(Debug, Clone, Default)]
pub(crate) struct Living(Arc<Mutex<LivingAttempts>>);

/// Each under its newest generation.
type LivingAttempts = BTreeMap<AttemptId, (Generation, Arc<Positions>)>;

impl Living {
    /// The attempt lives, under this generation.
    fn insert(&self, Fence { attempt_id, generation }: Fence, positions: Arc<Positions>) {
        self.lock().insert(attempt_id, (generation, positions));
    }

    fn remove(&self, attempt: AttemptId) {
        self.lock().remove(&attempt);
    }

    /// Whether some rank waits for others longer than its job likes.
    fn has_long_wait(&self) -> bool {
        self.lock().values().any(|(_, positions)| positions.has_long_wait())
    }

    fn all(&self) -> Vec<RunningAttempt> {
        let living = self.lock();
        let running = living.iter().map(|(&attempt_id, (generation, positions))| RunningAttempt {
            fence: Fence { attempt_id, generation: *generation },
            ranks: positions.all(),
        });
        running.collect()
    }

    fn lock(&self) -> MutexGuard<'_, LivingAttempts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends a heartbeat every `every` until `end`; more often while some rank waits longer than its job likes, so that
/// whoever asks who is missing hears news.
pub(crate) async fn heartbeats(
    node: Arc<Node>,
    living: Living,
    boot_id: String,
    every: Duration,
    end: CancellationToken,
) {
    let mut ticks = tokio::time::interval(every.min(LOOK_FOR_WAITS));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last: Option<Instant> = None;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = end.cancelled() => return,
        }
        let is_due = last.is_none_or(|last| {
            let silent = last.elapsed();
            every <= silent || (SHORTEST_BEAT <= silent && living.has_long_wait())
        });
        if !is_due {
            continue;
        }
        if end.run_until_cancelled(node.server.reachable()).await.is_none() {
            return;
        }
        last = Some(Instant::now());
        let request = HeartbeatRequest { boot_id: boot_id.clone(), running: living.all() };
        let client = node.server.client();
        let answer = tokio::select! {
            // Longer than a beat, so that a server that is merely slow still renews the lease.
            answer = client.heartbeat(&request, every * 2) => answer,
            () = node.server.cut_off() => continue,
        };
        match node.server.note(answer) {
            Ok(answer) => {
                for fence in answer.lost {
                    if node.notes.send(Note::Lost(fence)).is_err() {
                        return;
                    }
                }
            }
            Err(error) => tracing::warn!(error = %chain(&error), "a heartbeat was not heard"),
        }
    }
}

/// Asks again and again what should run here, until `end`.
pub(crate) async fn polls(
    node: Arc<Node>,
    joiner: Joiner,
    inventory: Inventory,
    boot_id: String,
    answers: mpsc::Sender<Vec<Assignment>>,
    end: CancellationToken,
) {
    let mut seen_version = 0;
    let mut backoff = Backoff::new(Policy::PATIENT);
    loop {
        let request = PollRequest {
            seen_version,
            inventory: inventory.clone(),
            boot_id: boot_id.clone(),
            host: node.reach.host.clone(),
        };
        if end.run_until_cancelled(node.server.reachable()).await.is_none() {
            return;
        }
        let asked_at = Instant::now();
        let client = node.server.client();
        let answer = tokio::select! {
            answer = client.poll(&request) => node.server.note(answer),
            () = node.server.cut_off() => continue,
            () = end.cancelled() => return,
        };
        match answer {
            Ok(answer) if answer.version != seen_version => {
                if seen_version == 0 {
                    tracing::info!("agent is ready");
                }
                seen_version = answer.version;
                backoff.reset();
                if answers.send(answer.assignments).await.is_err() {
                    return;
                }
                continue;
            }
            Ok(_) if SHORTEST_PARK < asked_at.elapsed() => {
                backoff.reset();
                continue;
            }
            Ok(_) => {}
            Err(error) if error.code() == Some(ProblemCode::Unauthenticated) => {
                let joined = tokio::select! {
                    joined = joiner.join_again(&node.server) => joined,
                    () = end.cancelled() => return,
                };
                match joined {
                    Ok(()) => seen_version = 0,
                    Err(error) => {
                        tracing::error!(error = %format!("{error:#}"), "the server no longer knows this node")
                    }
                }
            }
            Err(error) => tracing::warn!(error = %chain(&error), "cannot ask the server for work"),
        }
        let delay = backoff.next_delay().unwrap_or(Policy::PATIENT.max_delay);
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = end.cancelled() => return,
        }
    }
}

/// Offers nothing from now on, so that the server does not place anything on a node that is leaving.
pub(crate) async fn withdraw(node: &Node, boot_id: String) -> Farewell {
    let inventory = Inventory { cpu_slots: Vec::new(), cuda_devices: Vec::new(), memory_mib: 0 };
    // No version is negative, so the answer comes at once.
    let host = node.reach.host.clone();
    let request = PollRequest { seen_version: -1, inventory, boot_id, host };
    let client = node.server.client();
    match tokio::time::timeout(WITHDRAW_TIMEOUT, client.poll(&request)).await {
        Ok(Ok(_)) => return Farewell::Heard,
        Ok(Err(error)) => {
            tracing::debug!(error = %chain(&error), "the server was not told that this node leaves")
        }
        Err(_) => tracing::debug!("the server was not told in time that this node leaves"),
    }
    Farewell::Unheard
}

struct Running {
    local: Local,
    told: watch::Sender<Told>,
    positions: Arc<Positions>,
}

/// Makes what runs here what should run here.
pub(crate) struct Session {
    node: Arc<Node>,
    living: Living,
    orphan_grace: Duration,
    running: BTreeMap<AttemptId, Running>,
    wanted: Vec<Assignment>,
    attempts: JoinSet<Ending>,
    tasks: HashMap<Id, AttemptId>,
}

impl Session {
    pub(crate) fn new(node: Arc<Node>, living: Living, orphan_grace: Duration) -> Self {
        Self {
            node,
            living,
            orphan_grace,
            running: BTreeMap::new(),
            wanted: Vec::new(),
            attempts: JoinSet::new(),
            tasks: HashMap::new(),
        }
    }

    /// Until `end`. What runs then goes on until [`Self::leave`].
    pub(crate) async fn run(
        &mut self,
        mut answers: mpsc::Receiver<Vec<Assignment>>,
        mut notes: mpsc::UnboundedReceiver<Note>,
        end: CancellationToken,
    ) {
        while !end.is_cancelled() {
            let is_at_work = !self.attempts.is_empty();
            tokio::select! {
                () = end.cancelled() => {}
                Some(ended) = self.attempts.join_next_with_id() => self.ended(ended),
                Some(Note::Lost(fence)) = notes.recv() => self.lose(fence),
                Some(wanted) = answers.recv() => {
                    self.wanted = wanted;
                    self.settle();
                }
                () = self.node.server.silent_for(self.orphan_grace), if is_at_work => {
                    let text = format!("no server answered node for {:?}", self.orphan_grace);
                    self.kill_all(&text).await;
                }
            }
        }
    }

    /// Comes back when all ranks are gone: those that the server wants to go on elsewhere leave after a checkpoint, if they do
    /// in time; whatever else lives is killed.
    pub(crate) async fn leave(mut self, farewell: Farewell) {
        if farewell == Farewell::Heard {
            self.stop_all().await;
        }
        self.kill_all("the agent of this node was told to stop").await;
    }

    /// Asks every rank to leave after its step and waits until all are gone and what they wrote is published; not for ever.
    async fn stop_all(&mut self) {
        for id in self.running.keys().copied().collect::<Vec<_>>() {
            self.tell(id, Order::Stop);
        }
        let all_gone = async {
            while let Some(ended) = self.attempts.join_next_with_id().await {
                self.ended(ended);
            }
        };
        if tokio::time::timeout(STOP_LIMIT, all_gone).await.is_err() {
            tracing::warn!("ranks did not leave in time: they are killed");
        }
    }

    /// Kills every rank and waits until all are gone.
    async fn kill_all(&mut self, why: &str) {
        let is_active =
            |running: &&mut Running| matches!(running.local.state, LocalState::Active(_));
        for running in self.running.values_mut().filter(is_active) {
            running.local.state = LocalState::Active(Order::Kill);
            let verdict = own_failure(FailureCode::NodeLost, why.to_owned());
            running.told.send_modify(|told| {
                told.order = Order::Kill;
                told.verdict = Some(verdict);
            });
        }
        while let Some(ended) = self.attempts.join_next_with_id().await {
            self.ended(ended);
        }
    }

    fn settle(&mut self) {
        let local = self.running.iter().map(|(id, it)| (*id, it.local)).collect();
        for action in difference(&self.wanted, &local) {
            match action {
                Action::Start(assignment) => self.start(*assignment),
                Action::Regroup(assignment) => self.regroup(*assignment),
                Action::Tell(id, order) => self.tell(id, order),
                Action::Forget(id) => {
                    self.running.remove(&id);
                }
            }
        }
        self.tell_endpoints();
    }

    /// What is known of a generation only grows: the first answer that knows all endpoints counts.
    fn tell_endpoints(&self) {
        for assignment in self.wanted.iter().filter(|it| meet::are_endpoints_known(it)) {
            let Some(running) = self.running.get(&assignment.attempt_id) else { continue };
            running.told.send_if_modified(|told| {
                let is_new = told.wanted.generation == assignment.generation
                    && !meet::are_endpoints_known(&told.wanted);
                if is_new {
                    told.wanted = Arc::new(assignment.clone());
                }
                is_new
            });
        }
    }

    fn start(&mut self, assignment: Assignment) {
        let fence = fence_of(&assignment);
        tracing::info!(job = %assignment.job_id, attempt = %fence.attempt_id, generation = fence.generation.0, ranks = assignment.ranks.len(), "starting an attempt");
        let order = if assignment.is_stopping { Order::Stop } else { Order::Run };
        let wanted = Arc::new(assignment);
        let positions = Arc::new(Positions::new(wanted.spec.timeouts.effective().soft()));
        let (told, receiver) = watch::channel(Told { order, verdict: None, wanted });
        self.living.insert(fence, positions.clone());
        let task = attempt::run(self.node.clone(), receiver, positions.clone());
        self.tasks.insert(self.attempts.spawn(task).id(), fence.attempt_id);
        let local = Local { generation: fence.generation, state: LocalState::Active(order) };
        self.running.insert(fence.attempt_id, Running { local, told, positions });
    }

    /// An attempt goes on in another group.
    fn regroup(&mut self, assignment: Assignment) {
        let fence = fence_of(&assignment);
        let Some(running) = self.running.get_mut(&fence.attempt_id) else { return };
        tracing::info!(attempt = %fence.attempt_id, generation = fence.generation.0, "an attempt goes on in another group");
        running.local.generation = fence.generation;
        self.living.insert(fence, running.positions.clone());
        running.told.send_modify(|told| told.wanted = Arc::new(assignment));
    }

    /// The server says that an attempt is no longer this node's. What it says of an earlier generation than the one that is
    /// at work, it has said before it answered with that one.
    fn lose(&mut self, fence: Fence) {
        let running = self.running.get(&fence.attempt_id);
        if running.is_some_and(|it| it.local.generation == fence.generation) {
            self.tell(fence.attempt_id, Order::Kill);
        }
    }

    fn tell(&mut self, id: AttemptId, order: Order) {
        let Some(running) = self.running.get_mut(&id) else { return };
        if matches!(running.local.state, LocalState::Active(old) if old < order) {
            running.local.state = LocalState::Active(order);
            running.told.send_modify(|told| told.order = order);
        }
    }

    fn ended(&mut self, ended: Result<(Id, Ending), tokio::task::JoinError>) {
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let Some(attempt_id) = self.tasks.remove(&id) else { return };
        let Some(running) = self.running.get_mut(&attempt_id) else { return };
        let fence = Fence { attempt_id, generation: running.local.generation };
        running.local.state = match ended {
            Ok((_, Ending::Finished)) => LocalState::Finished,
            Ok((_, Ending::Stopped)) | Err(_) => LocalState::Ended,
        };
        if let Err(error) = ended {
            // Dropping the task has killed its ranks.
            tracing::error!(attempt = %fence.attempt_id, %error, "an attempt's task broke");
            let text = "the agent made a mistake of its own; its log says more".to_owned();
            let verdict = Report::Failed(own_failure(FailureCode::PrepareFailed, text));
            for report in [verdict, Report::Stopped] {
                match self.node.spool.append(fence, report) {
                    Kept::Yes(_) | Kept::TooMuch => {}
                }
            }
        }
        self.living.remove(attempt_id);
        tracing::info!(attempt = %fence.attempt_id, generation = fence.generation.0, "an attempt is over here");
        self.settle();
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
