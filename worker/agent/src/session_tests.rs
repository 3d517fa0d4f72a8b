//! The session with a real attempt and no server: whatever takes the attempt away, its ranks die and that is reported.

use lockstep_api::{AssignedNetwork, NumberedReport, Rank};
use tokio::task::JoinHandle;

use super::*;
use crate::attempt::drive_tests::{PATIENT, TestNode, short, test_node};
use crate::stat::process_state;

const LIMIT: Duration = Duration::from_secs(20);
const NEVER: Duration = Duration::from_secs(3600);

struct Bench {
    node: Arc<Node>,
    living: Living,
    assignment: Assignment,
    answers: mpsc::Sender<Vec<Assignment>>,
    end: CancellationToken,
    task: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Bench {
    /// A session in which two ranks work and heed nothing.
    async fn start(orphan_grace: Duration) -> Self {
        let bench = Self::on(test_node("work", 2, true, PATIENT), orphan_grace).await;
        bench.until("formed").await;
        bench
    }

    /// A session that has been told of an assignment.
    async fn on(node: TestNode, orphan_grace: Duration) -> Self {
        Self::leaving(node, orphan_grace, Farewell::Unheard).await
    }

    #[expect(clippy::disallowed_methods, reason = "the test ends with its runtime")]
    async fn leaving(
        (node, assignment, notes, folder): TestNode,
        orphan_grace: Duration,
        farewell: Farewell,
    ) -> Self {
        let living = Living::default();
        let mut session = Session::new(node.clone(), living.clone(), orphan_grace);
        let (answers, answered) = mpsc::channel(1);
        let end = CancellationToken::new();
        let until = end.clone();
        let task = tokio::spawn(async move {
            session.run(answered, notes, until).await;
            session.leave(farewell).await;
        });
        let bench = Self { node, living, assignment, answers, end, task, _folder: folder };
        bench.answer(true).await;
        bench
    }

    /// The server lists the attempt, or no longer.
    async fn answer(&self, is_listed: bool) {
        let listed = if is_listed { vec![self.assignment.clone()] } else { Vec::new() };
        self.answers.send(listed).await.unwrap();
    }

    fn reports(&self) -> Vec<String> {
        let batch = self.node.spool.next_batch(usize::MAX, u64::MAX).unwrap();
        batch.iter().map(|NumberedReport { report, .. }| short(report)).collect()
    }

    async fn until(&self, what: &str) {
        let mut newest = self.node.spool.newest();
        let reported = async {
            while !self.reports().iter().any(|it| it == what) {
                newest.changed().await.unwrap();
            }
        };
        let waited = tokio::time::timeout(LIMIT, reported).await;
        waited.unwrap_or_else(|_| panic!("{what} is missing: {:?}", self.reports()));
    }

    fn pids(&self) -> Vec<i32> {
        self.living.all().iter().flat_map(|it| &it.ranks).map(|it| it.pid).collect()
    }

    /// The ranks were killed and everybody was told, with a verdict if the server cannot know why.
    async fn assert_killed(&self, pids: Vec<i32>, verdict: Option<&str>) {
        self.until("stopped").await;
        let said = self.reports();
        assert_eq!(
            said.iter().find(|it| it.starts_with("failed")).map(String::as_str),
            verdict,
            "{said:?}"
        );
        for rank in [0, 1] {
            assert!(said.contains(&format!("exited {rank} None Some(9)")), "{said:?}");
        }
        assert_eq!(pids.len(), 2);
        for pid in pids {
            assert_eq!(process_state(pid), None);
        }
    }
}

#[tokio::test]
async fn ranks_of_an_attempt_that_the_server_no_longer_lists_die() {
    let bench = Bench::start(NEVER).await;
    let pids = bench.pids();
    bench.answer(false).await;
    bench.assert_killed(pids, None).await;
}

#[tokio::test]
async fn ranks_with_a_network_are_started_when_an_answer_knows_all_endpoints() {
    let (node, mut assignment, notes, folder) = test_node("meet", 3, true, PATIENT);
    let nodes = vec![vec![Rank(0), Rank(1)], vec![Rank(2)]];
    assignment.network = Some(AssignedNetwork { nodes, spans_hosts: false, endpoints: None });
    assignment.spec.ddp.encrypt = true;
    let mut bench = Bench::on((node, assignment, notes, folder), NEVER).await;
    bench.until("prepared").await;
    bench.answer(true).await;
    let batch = bench.node.spool.next_batch(usize::MAX, u64::MAX).unwrap();
    let endpoints = batch.into_iter().filter_map(|it| match it.report {
        Report::RankListens { rank: _, endpoints } => Some(endpoints),
        _ => None,
    });
    let endpoints: Vec<Vec<String>> = endpoints.collect();
    assert_eq!((endpoints.len(), bench.pids()), (3, vec![]), "nobody knows all endpoints yet");
    bench.assignment.network.as_mut().unwrap().endpoints = Some(endpoints);
    bench.answer(true).await;
    bench.until("finished").await;
}

#[tokio::test]
async fn ranks_that_have_finished_are_not_started_again_for_a_group_that_comes_too_late() {
    let mut bench = Bench::on(test_node("finish", 2, true, PATIENT), NEVER).await;
    bench.until("finished").await;
    let is_over = async {
        while !bench.living.all().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, is_over).await.expect("the session hears of the end");
    bench.assignment.generation = bench.assignment.generation.next();
    // When the third is on its way, the first has been acted on.
    for _ in 0..3 {
        bench.answer(true).await;
    }
    assert_eq!(bench.living.all(), []);
}

#[tokio::test]
async fn ranks_of_a_lost_lease_die_at_once() {
    let bench = Bench::start(NEVER).await;
    let pids = bench.pids();
    let fence = fence_of(&bench.assignment);
    bench.node.notes.send(Note::Lost(fence)).unwrap();
    bench.assert_killed(pids, None).await;
}

#[tokio::test]
async fn ranks_that_no_server_answers_for_die_after_the_grace() {
    let grace = Duration::from_secs(60);
    let bench = Bench::start(grace).await;
    let pids = bench.pids();
    bench.node.server.set_back(grace);
    bench.assert_killed(pids, Some("failed node_lost")).await;
}

#[tokio::test]
async fn an_agent_that_is_told_to_stop_kills_its_ranks_and_says_why() {
    let mut bench = Bench::start(NEVER).await;
    let pids = bench.pids();
    bench.end.cancel();
    tokio::time::timeout(LIMIT, &mut bench.task).await.unwrap().unwrap();
    bench.assert_killed(pids, Some("failed node_lost")).await;
    assert_eq!(bench.living.all(), []);
}

#[tokio::test]
async fn an_agent_whose_farewell_was_heard_lets_its_ranks_leave_by_themselves() {
    let obedient = test_node("obey", 2, true, PATIENT);
    let mut bench = Bench::leaving(obedient, NEVER, Farewell::Heard).await;
    bench.until("formed").await;
    bench.end.cancel();
    tokio::time::timeout(LIMIT, &mut bench.task).await.unwrap().unwrap();
    let said = bench.reports();
    for what in ["exited 0 Some(0) None", "exited 1 Some(0) None", "stopped"] {
        assert!(said.iter().any(|it| it == what), "{said:?}");
    }
    assert!(!said.iter().any(|it| it.starts_with("failed")), "{said:?}");
}

#[tokio::test]
async fn an_agent_that_leaves_does_not_wait_for_ranks_that_heed_nothing() {
    let deaf = test_node("work", 2, true, PATIENT);
    let mut bench = Bench::leaving(deaf, NEVER, Farewell::Heard).await;
    bench.until("formed").await;
    let pids = bench.pids();
    bench.end.cancel();
    tokio::time::timeout(LIMIT, &mut bench.task).await.unwrap().unwrap();
    bench.assert_killed(pids, Some("failed node_lost")).await;
}
