//! From one group of an attempt to the next: who is not in it is killed, who goes on is told, who is new is started.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::Context as _;
use futures::future::join_all;
use lockstep_api::{
    AgentMessage, AssignedRank, Assignment, FailureCode, FailureReport, Fence, RankConfig,
    RankNetwork, Regroup, Report,
};
use lockstep_service::chain;
use rustix::process::Pid;
use tokio::process::Child;

use super::super::course::{Input, own_failure};
use super::super::link::{Socket, Word, serve};
use super::super::meet::{self, Seat, Sockets};
use super::super::prepare::PrepareError;
use super::super::process::{RankProcess, Watch, feed};
use super::Drive;
use crate::control_group::RankGroup;
use crate::gang::fence_of;
use crate::spawn::{GangCommand, Inherited, Joined};

impl Drive {
    /// Seats the ranks of a group: starts those that do not run, tells the others.
    pub(super) async fn seat(
        &mut self,
        assignment: &Assignment,
        sockets: Sockets,
    ) -> anyhow::Result<()> {
        let path = self.node.places.sockets.join(socket_name(fence_of(assignment)));
        let mut socket = Socket::bind(path.clone())?;
        self.socket_paths.push(path);
        let mut networks = Vec::new();
        let mut members = Vec::new();
        let mut groups = Vec::new();
        let slots = u64::try_from(assignment.ranks.len()).unwrap_or(u64::MAX);
        let memory_mib = slots.saturating_mul(assignment.spec.gang.slot.memory_mib.into());
        self.group.make(memory_mib).context("cannot make the attempt's control group")?;
        for (assigned, seat) in assignment.ranks.iter().zip(meet::seats(assignment, sockets)) {
            let Seat { memory_index, listener, network } = seat;
            let is_running = self.processes.contains_key(&assigned.process);
            let group = match is_running {
                true => RankGroup::default(),
                false => self
                    .group
                    .rank(assigned.process)
                    .context("cannot make a rank's control group")?,
            };
            let entrances = group.entrances().context("cannot enter a rank's control group")?;
            members.push(Inherited { memory_index, listener, entrances, is_running });
            groups.push(group);
            networks.push(network);
        }
        let gang = self.node.spawner.gang(GangCommand {
            program: self.node.places.rank_binary.clone(),
            args: vec!["train".to_owned()],
            folder: self.ready.folder.clone(),
            members,
        });
        let gang =
            gang.await.with_context(|| format!("cannot start {}", self.node.places.rank_binary))?;
        let mut feeds = Vec::new();
        let seats = networks.into_iter().zip(groups);
        for (place, (joined, (network, group))) in gang.members.into_iter().zip(seats).enumerate() {
            match joined {
                Joined::Running { memory, listener } => {
                    self.tell_group(assignment, place, network, (memory, listener));
                }
                Joined::Started { child, group_fd, listener_fd } => {
                    let config = self.ready.config(
                        &self.node,
                        assignment,
                        place,
                        socket.path.as_str(),
                        (group_fd, listener_fd, network),
                    );
                    let started = (child, group);
                    feeds.push(self.watch(
                        assignment.ranks[place],
                        &config,
                        started,
                        &mut socket,
                    )?);
                }
            }
        }
        self.course.seated();
        let key = assignment.attempt_key.clone();
        self.tasks.spawn(serve(socket, key, self.hear.clone()));
        join_all(feeds).await;
        Ok(())
    }

    /// Tells a rank that runs of its next group.
    fn tell_group(
        &self,
        assignment: &Assignment,
        place: usize,
        network: Option<RankNetwork>,
        (memory, listener): (Arc<OwnedFd>, Option<OwnedFd>),
    ) {
        let AssignedRank { rank, process, .. } = assignment.ranks[place];
        let Some(known) = self.processes.get(&process) else { return };
        let message = AgentMessage::Regroup(Regroup {
            generation: assignment.generation,
            rank,
            world_size: assignment.world_size,
            network,
            steps_reported: assignment.steps_reported,
            faults_done: assignment.faults_done.clone(),
        });
        let descriptors = [memory].into_iter().chain(listener.map(Arc::new)).collect();
        known.say(Word { message, descriptors });
    }

    /// Looks after a process that was just started. Answers the future that gives it its settings.
    fn watch(
        &mut self,
        assigned: AssignedRank,
        config: &RankConfig,
        (mut child, group): (Child, RankGroup),
        socket: &mut Socket,
    ) -> anyhow::Result<impl Future<Output = ()> + use<>> {
        let AssignedRank { rank, process, .. } = assigned;
        let config = serde_json::to_vec(config).context("a rank's settings as JSON")?;
        let fed = feed(child.stdin.take(), config);
        let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let pid = id.context("a rank ended before it was looked at")?;
        let (ear, words) = socket.expect(rank, process);
        let known = RankProcess::new(rank, pid, group, words);
        let record = self.ready.flight_record(process);
        self.positions.add(rank, pid.as_raw_pid(), record.clone());
        self.reporter.report(Report::RankStarted { rank, pid: pid.as_raw_pid() });
        let watch = Watch {
            process,
            child,
            record,
            ear,
            clock: self.node.clock.clone(),
            lines: self.line.clone(),
            gone: self.go.clone(),
        };
        self.tasks.spawn(watch.start(&known));
        self.processes.insert(process, known);
        Ok(fed)
    }

    /// The next generation: who is not in it is killed, and the group forms once they are gone and everybody can be reached.
    pub(super) async fn regroup(&mut self, wanted: Arc<Assignment>) {
        if !self.course.can_regroup() {
            return;
        }
        self.hear_all();
        self.fence = fence_of(&wanted);
        self.reporter.set_fence(self.fence);
        let place_of = |process: i32| wanted.ranks.iter().find(|it| it.process == process);
        let mut before = BTreeMap::new();
        for (process, known) in std::mem::take(&mut self.processes) {
            match place_of(process) {
                Some(assigned) => {
                    before.insert(process, known.rank());
                    known.seat(assigned.rank);
                    self.processes.insert(process, known);
                }
                None => {
                    known.kill();
                    // Even if it is dead already: its end is still to be told.
                    if !self.course.has_exited(known.rank()) {
                        self.evicted.insert(process, known);
                    }
                }
            }
        }
        let known = self.processes.values();
        self.positions
            .seat(|pid| known.clone().find(|it| it.pid.as_raw_pid() == pid).map(RankProcess::rank));
        let seats = wanted.ranks.iter().map(|it| (it.rank, before.get(&it.process).copied()));
        for exit in self.course.regroup(seats) {
            self.reporter.report(exit);
        }
        self.processes.values().for_each(|it| it.say(AgentMessage::Interrupt.into()));
        match meet::listen(&self.node, &wanted, &mut self.reporter).await {
            Ok(sockets) => {
                meet::say_prepared(&wanted, &mut self.reporter);
                self.next = Some((wanted, sockets));
            }
            Err(error) => {
                let error = PrepareError::from(error);
                self.act(Input::Broken(own_failure(error.code(), chain(&error))));
            }
        }
        self.seat_next().await;
    }

    /// Seats the next group, if nothing is missing.
    pub(super) async fn seat_next(&mut self) {
        let is_ready =
            |(wanted, _): &mut (Arc<Assignment>, Sockets)| meet::are_endpoints_known(wanted);
        if !self.evicted.is_empty() {
            return;
        }
        let Some((wanted, sockets)) = self.next.take_if(is_ready) else { return };
        if let Err(error) = self.seat(&wanted, sockets).await {
            self.act(Input::Broken(could_not_start(&error)));
        }
    }
}

pub(super) fn could_not_start(error: &anyhow::Error) -> FailureReport {
    let text = format!("the ranks could not be started: {error:#}");
    own_failure(FailureCode::PrepareFailed, text)
}

/// Short, and different for every fence: the random end of the attempt's id, and the generation.
fn socket_name(fence: Fence) -> String {
    let id = fence.attempt_id.to_string();
    format!("{}-{}", &id[id.len().saturating_sub(12)..], fence.generation)
}
