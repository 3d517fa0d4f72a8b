//! When a job that was lost is tried again, and when it is not.

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::PgPool;

use crate::agent::{Agent, exited, failed, formed, reconciled, steps};
use crate::common::Server;

async fn view(server: &Server, job: &str) -> Value {
    server.get(&format!("/v1/jobs/{job}"), &server.first.token).await.json()
}

/// A job of one rank with these budgets, on a node that is heard all the time.
struct Course {
    server: Server,
    agent: Agent,
    job: String,
    seq: i64,
}

impl Course {
    async fn new(pool: PgPool, retry: Value) -> Self {
        let server = Server::new(pool).await;
        let agent = Agent::join(&server, "alpha", 1).await;
        agent.poll(&server, 0).await;
        let job = agent.submit_with(&server, json!({"gang": {"ranks": 1}, "retry": retry})).await;
        reconciled(&server).await;
        Self { server, agent, job, seq: 0 }
    }

    /// The attempt at work does so many steps and ends like this.
    async fn ends(&mut self, steps_done: usize, end: Value) {
        let fence = self.agent.assignment(&self.server).await.fence();
        let mut reports = vec![];
        if 0 < steps_done {
            reports.push((self.seq + 1, &fence, formed(0)));
            reports.push((self.seq + 2, &fence, steps(0, &vec![1.0; steps_done])));
        }
        reports.push((self.seq + 3, &fence, end));
        reports.push((self.seq + 4, &fence, json!({"kind": "stopped"})));
        self.agent.report(&self.server, &reports).await;
        self.seq += 4;
    }

    /// After so long, during which the node is heard.
    async fn after(&self, time: Duration) -> Value {
        self.server.clock.advance(time);
        self.agent.poll(&self.server, 0).await;
        reconciled(&self.server).await;
        view(&self.server, &self.job).await
    }
}

fn milliseconds(time: u64) -> Duration {
    Duration::from_millis(time)
}

#[sqlx::test(migrations = "../migrations")]
async fn attempts_that_end_without_a_step_double_the_wait_and_a_step_ends_that(pool: PgPool) {
    let mut course = Course::new(pool, json!({"infrastructure": 9})).await;
    let death = exited(0, None, Some(9));
    for seconds in [1, 2, 4] {
        course.ends(0, death.clone()).await;
        let waits = format!("waits {seconds} s after a failure");
        assert_eq!(view(&course.server, &course.job).await["waiting"], waits.as_str());
        let early = course.after(milliseconds(1000 * seconds - 1)).await;
        assert_eq!(
            (&early["state"], &early["waiting"]),
            (&json!("queued"), &json!(waits)),
            "although there is room"
        );
        assert_eq!(course.after(milliseconds(1)).await["state"], "active");
    }
    course.ends(1, death.clone()).await;
    let now = view(&course.server, &course.job).await;
    assert_eq!(now["waiting"], "waits 1 s after a failure", "it did a step");
    let path = format!("/v1/jobs/{}/log", course.job);
    let log = course.server.get(&path, &course.server.first.token).await.json();
    let goes_on = log["lines"].as_array().unwrap().iter().filter(|line| {
        line["text"] == "another attempt goes on from its beginning" && line["source"] == "server"
    });
    assert_eq!(goes_on.count(), 4, "{log:#}");
}

#[sqlx::test(migrations = "../migrations")]
async fn who_waits_after_a_failure_keeps_no_slot_from_others(pool: PgPool) {
    let mut course = Course::new(pool, json!({"infrastructure": 9})).await;
    course.ends(0, exited(0, None, Some(9))).await;
    let other = course.agent.place_job(&course.server, 1).await;
    assert_eq!(view(&course.server, &other).await["state"], "active");
    let now = course.after(milliseconds(1000)).await;
    let waiting = now["waiting"].as_str().unwrap();
    assert!(waiting.starts_with("waits for 1 free slot"), "{waiting}");
}

#[sqlx::test(migrations = "../migrations")]
async fn the_loop_looks_again_soon_when_a_wait_is_almost_over(pool: PgPool) {
    use lockstep_server::reconcile::{Soon, pass};
    let mut course = Course::new(pool, json!({"infrastructure": 9})).await;
    assert_eq!(pass(&course.server.app).await.unwrap(), Soon::No);
    course.ends(0, exited(0, None, Some(9))).await;
    assert_eq!(pass(&course.server.app).await.unwrap(), Soon::Yes);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_guest_that_traps_twice_at_one_sample_ends_its_job_whatever_budget_is_left(pool: PgPool) {
    let mut course = Course::new(pool, json!({"user": 5})).await;
    let trap = |sample: i64| {
        let mut trap = failed("guest_trap", Some(0), json!({"sample": sample}));
        trap["message"] = json!(format!("a trap at sample {sample}"));
        trap
    };
    course.ends(1, trap(17)).await;
    assert_eq!(course.after(milliseconds(1000)).await["state"], "active");
    course.ends(2, trap(18)).await;
    let now = course.after(milliseconds(1000)).await;
    assert_eq!((&now["state"], &now["ended_because"]), (&json!("active"), &Value::Null));
    course.ends(2, trap(18)).await;
    let now = view(&course.server, &course.job).await;
    assert_eq!(now["state"], "failed");
    let because = "not tried again: guest_trap at sample 18, as in the attempt before";
    assert_eq!(now["ended_because"], because);
    assert_eq!(now["attempts"].as_array().unwrap().len(), 3);
}
