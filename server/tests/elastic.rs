//! Gangs whose size may change: they take slots that nobody waits for and give them back to jobs that do.

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::PgPool;

use crate::agent::{Agent, formed, process_exited, reconciled, steps};
use crate::common::Server;

async fn view(server: &Server, job: &str) -> Value {
    server.get(&format!("/v1/jobs/{job}"), &server.first.token).await.json()
}

/// `(rank, process, heals)` of what a node should run.
async fn ranks(server: &Server, agent: &Agent) -> Vec<(i64, i64, bool)> {
    let assignment = agent.assignment(server).await.json;
    let ranks = assignment["ranks"].as_array().unwrap().iter();
    let number = |it: &Value, field: &str| it[field].as_i64().unwrap();
    ranks.map(|it| (number(it, "rank"), number(it, "process"), it["heals"] == true)).collect()
}

/// Five seconds, in which nobody is silent for longer than a lease.
async fn some_time(server: &Server, agents: &[&Agent], fence: &Value) {
    for _ in 0..2 {
        server.clock.advance(Duration::from_millis(2500));
        for agent in agents {
            agent.heartbeat(server, &[fence]).await;
        }
    }
}

/// A gang of 1 to 3 ranks that has done a step on alpha, whose one slot is the only one.
async fn alone(server: &Server) -> (Agent, String) {
    let alpha = Agent::join(server, "alpha", 1).await;
    alpha.poll(server, 0).await;
    let fields = json!({"gang": {"ranks": {"min": 1, "max": 3}}});
    let job = alpha.submit_with(server, fields).await;
    reconciled(server).await;
    assert_eq!(ranks(server, &alpha).await, [(0, 0, false)]);
    let fence = alpha.assignment(server).await.fence();
    alpha.report(server, &[(1, &fence, formed(0)), (2, &fence, steps(0, &[9.0]))]).await;
    some_time(server, &[&alpha], &fence).await;
    (alpha, job)
}

/// The same beside beta, whose two slots it has taken.
async fn grown(server: &Server) -> ([Agent; 2], String) {
    let (alpha, job) = alone(server).await;
    let beta = Agent::join(server, "beta", 2).await;
    beta.poll(server, 0).await;
    reconciled(server).await;
    ([alpha, beta], job)
}

#[sqlx::test(migrations = "../migrations")]
async fn a_gang_takes_slots_that_nobody_waits_for(pool: PgPool) {
    let server = Server::new(pool).await;
    let ([alpha, beta], job) = grown(&server).await;
    assert_eq!(ranks(&server, &alpha).await, [(0, 0, false)]);
    assert_eq!(ranks(&server, &beta).await, [(1, 1, true), (2, 2, true)]);
    let assignment = alpha.assignment(&server).await.json;
    assert_eq!((&assignment["generation"], &assignment["world_size"]), (&json!(2), &json!(3)));
    let now = view(&server, &job).await;
    assert_eq!((&now["ranks"], &now["world_size"]), (&json!({"min": 1, "max": 3}), &json!(3)));
    assert_eq!((&now["generation"], &now["failures"]), (&json!(2), &json!([])));
    let sizes = now["attempts"][0]["groups"].as_array().unwrap().iter().map(|it| &it["world_size"]);
    assert_eq!(sizes.collect::<Vec<_>>(), [&json!(1), &json!(3)]);
    // It grows no further before it has done a step, nor ever beyond its most.
    let _gamma = Agent::join(&server, "gamma", 2).await;
    reconciled(&server).await;
    let fence = alpha.assignment(&server).await.fence();
    alpha.report(&server, &[(3, &fence, formed(1)), (4, &fence, steps(1, &[8.0]))]).await;
    some_time(&server, &[&alpha, &beta], &fence).await;
    reconciled(&server).await;
    assert_eq!(view(&server, &job).await["generation"], 2);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_that_waits_gets_a_slot_back_once_its_process_is_gone(pool: PgPool) {
    let server = Server::new(pool).await;
    let ([alpha, beta], job) = grown(&server).await;
    let fence = alpha.assignment(&server).await.fence();
    alpha.report(&server, &[(3, &fence, formed(1)), (4, &fence, steps(1, &[8.0]))]).await;
    let waiting = alpha.place_job(&server, 1).await;
    assert_eq!(ranks(&server, &beta).await, [(1, 1, true)], "the last rank has to leave");
    assert_eq!(alpha.assignment(&server).await.json["world_size"], 2);
    for _ in 0..2 {
        reconciled(&server).await;
        assert_eq!(view(&server, &waiting).await["state"], "queued", "a process may live there");
        assert_eq!(view(&server, &job).await["generation"], 3, "one slot is all that it needs");
    }
    let gone = process_exited((2, 2), None, Some(9));
    let fence = beta.assignment(&server).await.fence();
    assert_eq!(beta.report(&server, &[(1, &fence, gone)]).await["lost"], json!([]));
    reconciled(&server).await;
    assert_eq!(view(&server, &waiting).await["state"], "active");
    let now = view(&server, &job).await;
    assert_eq!((&now["generation"], &now["failures"]), (&json!(3), &json!([])));
    assert_eq!(now["attempts"][0]["ranks"].as_array().unwrap().len(), 2);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_gang_goes_on_without_a_node_that_is_lost_and_its_ranks_move_up(pool: PgPool) {
    let server = Server::new(pool).await;
    let ([alpha, beta], job) = grown(&server).await;
    let fence = beta.assignment(&server).await.fence();
    beta.report(&server, &[(1, &fence, formed(1)), (2, &fence, steps(1, &[8.0]))]).await;
    server.clock.advance(Duration::from_secs(4));
    beta.heartbeat(&server, &[&fence]).await;
    reconciled(&server).await;
    let now = view(&server, &job).await;
    assert_eq!(now["failures"].as_array().unwrap().len(), 1, "{now:#}");
    assert_eq!(now["failures"][0]["code"], "node_lost");
    reconciled(&server).await;
    assert_eq!(ranks(&server, &beta).await, [(0, 1, true), (1, 2, true)]);
    assert_eq!(beta.assignment(&server).await.json["world_size"], 2);
    // What beta says of its second process, it says of rank 1 now, whatever it was before.
    let gone = process_exited((2, 2), None, Some(9));
    beta.report(&server, &[(3, &fence, gone)]).await;
    let now = view(&server, &job).await;
    assert_eq!(now["failures"][0]["rank"], 1, "{now:#}");
    assert_eq!(ranks(&server, &beta).await, [(0, 1, true), (1, 3, true)]);
    let nothing = alpha.poll(&server, 0).await;
    assert_eq!(nothing["assignments"], json!([]));
}
