//! A scripted agent: speaks the protocol, runs nothing.

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use lockstep_api::{Digest, FileManifest};
use lockstep_server::reconcile;
use serde_json::{Value, json};

use crate::common::{Answer, Server};

/// One pass of everything that happens without being asked.
pub(crate) async fn reconciled(server: &Server) {
    let _soon = reconcile::pass(&server.app).await.unwrap();
}

pub(crate) struct Agent {
    pub(crate) node_id: String,
    pub(crate) boot_id: String,
    pub(crate) host: String,
    token: String,
    inventory: Value,
}

/// What an agent was told to run.
pub(crate) struct Assignment {
    pub(crate) json: Value,
}

impl Assignment {
    pub(crate) fn fence(&self) -> Value {
        json!({"attempt_id": self.json["attempt_id"], "generation": self.json["generation"]})
    }
}

impl Agent {
    pub(crate) async fn join(server: &Server, name: &str, slots: usize) -> Self {
        let slot = |index| json!({"index": index, "cores": 1, "memory_mib": 1024});
        let cpu_slots: Vec<Value> = (0..slots).map(slot).collect();
        let inventory = json!({"cpu_slots": cpu_slots, "cuda_devices": [], "memory_mib": 4096});
        let body = json!({
            "join_token": server.first.join_token, "name": name, "inventory": inventory,
        });
        let answer = server.call("POST", "/v1/agent/join", "", body).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.json());
        let welcome = answer.json();
        assert_eq!((&welcome["heartbeat_ms"], &welcome["lease_ms"]), (&json!(1000), &json!(3000)));
        Self {
            node_id: welcome["node_id"].as_str().unwrap().to_owned(),
            boot_id: "boot".to_owned(),
            host: "one".to_owned(),
            token: welcome["node_token"].as_str().unwrap().to_owned(),
            inventory,
        }
    }

    pub(crate) async fn call(&self, server: &Server, what: &str, body: Value) -> Answer {
        server.call("POST", &format!("/v1/agent/{what}"), &self.token, body).await
    }

    pub(crate) fn poll_body(&self, seen_version: i64) -> Value {
        json!({
            "seen_version": seen_version, "inventory": self.inventory, "boot_id": self.boot_id,
            "host": self.host,
        })
    }

    pub(crate) async fn poll(&self, server: &Server, seen_version: i64) -> Value {
        let answer = self.call(server, "poll", self.poll_body(seen_version)).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.json());
        answer.json()
    }

    /// Offers nothing from its next poll on.
    pub(crate) fn withdraws(&mut self) {
        self.inventory = json!({"cpu_slots": [], "cuda_devices": [], "memory_mib": 0});
    }

    /// Says that these attempts run; answers the lost ones.
    pub(crate) async fn heartbeat(&self, server: &Server, fences: &[&Value]) -> Value {
        let running: Vec<Value> = fences.iter().map(|f| json!({"fence": f, "ranks": []})).collect();
        let body = json!({"boot_id": self.boot_id, "running": running});
        let answer = self.call(server, "heartbeat", body).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.json());
        answer.json()["lost"].clone()
    }

    /// Sends `(seq, fence, report)`; answers the response.
    pub(crate) async fn report(&self, server: &Server, reports: &[(i64, &Value, Value)]) -> Value {
        let reports: Vec<Value> = reports
            .iter()
            .map(|(seq, fence, report)| json!({"seq": seq, "fence": fence, "report": report}))
            .collect();
        let answer = self.call(server, "reports", json!({"reports": reports})).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.json());
        answer.json()
    }

    /// Submits a job of so many ranks: 10 samples, batches of 4, 3 epochs.
    pub(crate) async fn submit(&self, server: &Server, ranks: u32) -> String {
        self.submit_with(server, json!({"gang": {"ranks": ranks}})).await
    }

    pub(crate) async fn submit_with(&self, server: &Server, fields: Value) -> String {
        server.check_answers(
            r#"{"verdict":"accepted","train_samples":10,"eval_samples":null,
                "parameter_count":9610,"steps_total":9,"rank_memory_bytes":1000000}"#,
        );
        let mut job = server.job(&server.first.token).await;
        for (field, value) in fields.as_object().unwrap() {
            job[field] = value.clone();
        }
        let answer = server.submit(&server.first.token, &job, None).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.json());
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    /// Submits a job and has it placed.
    pub(crate) async fn place_job(&self, server: &Server, ranks: u32) -> String {
        let job = self.submit(server, ranks).await;
        reconciled(server).await;
        job
    }

    /// The one assignment that it has now.
    pub(crate) async fn assignment(&self, server: &Server) -> Assignment {
        let answer = self.poll(server, 0).await;
        let assignments = answer["assignments"].as_array().unwrap();
        assert_eq!(assignments.len(), 1, "{answer:#}");
        Assignment { json: assignments[0].clone() }
    }

    /// A chunk of an attempt, put or got.
    pub(crate) async fn chunk(
        &self,
        server: &Server,
        method: &str,
        fence: &Value,
        digest: &str,
        bytes: &[u8],
    ) -> Answer {
        let uri = format!(
            "/v1/agent/chunks/{digest}?attempt={}&generation={}",
            fence["attempt_id"].as_str().unwrap(),
            fence["generation"]
        );
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token))
            .header(header::CONTENT_TYPE, "application/octet-stream")
            .body(Body::from(bytes.to_vec()));
        server.send(request.unwrap()).await
    }

    pub(crate) fn publish_body(fence: &Value, step: i64, file: &FileManifest) -> Value {
        json!({"fence": fence, "step": step, "data_epoch": 0, "next_position": 4 * step, "file": file})
    }

    /// Puts and publishes a checkpoint of these bytes.
    pub(crate) async fn checkpoint(
        &self,
        server: &Server,
        fence: &Value,
        step: i64,
        bytes: &[u8],
    ) -> Value {
        let digest = Digest::of(bytes);
        let put = self.chunk(server, "PUT", fence, digest.as_str(), bytes).await;
        assert_eq!(put.status, StatusCode::NO_CONTENT);
        let size_bytes = i64::try_from(bytes.len()).unwrap();
        let file = FileManifest { digest: digest.clone(), size_bytes, chunks: vec![digest] };
        let answer = self.call(server, "checkpoints", Self::publish_body(fence, step, &file)).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.json());
        answer.json()
    }
}

/// A report of steps `first..` of batches of 4 out of 10 samples, with these losses.
pub(crate) fn steps(first: i64, losses: &[f64]) -> Value {
    let one = |(step, loss): (i64, &f64)| {
        let (data_epoch, first_position) = (step / 3, step % 3 * 4);
        json!({
            "ledger": {
                "step": step, "data_epoch": data_epoch, "first_position": first_position,
                "sample_count": 4.min(10 - first_position),
            },
            "loss": loss,
            "metrics": [{"name": "train/accuracy", "value": 0.5}],
            "duration_us": 1000,
        })
    };
    let steps: Vec<Value> = (first..).zip(losses).map(one).collect();
    json!({"kind": "steps", "steps": steps})
}

pub(crate) fn started(rank: i32, pid: i32) -> Value {
    json!({"kind": "rank_started", "rank": rank, "pid": pid})
}

pub(crate) fn formed(step: i64) -> Value {
    json!({"kind": "group_formed", "step": step, "samples_per_epoch": 10, "steps_total": 9})
}

/// Of the process that the rank began with.
pub(crate) fn exited(rank: i32, code: Option<i32>, signal: Option<i32>) -> Value {
    process_exited((rank, rank), code, signal)
}

pub(crate) fn process_exited(
    (process, rank): (i32, i32),
    code: Option<i32>,
    signal: Option<i32>,
) -> Value {
    let exit = json!({"code": code, "signal": signal, "phase": "backward", "step": 5});
    json!({"kind": "rank_exited", "process": process, "rank": rank, "exit": exit})
}

pub(crate) fn failed(code: &str, rank: Option<i32>, evidence: Value) -> Value {
    json!({
        "kind": "failed", "code": code, "rank": rank, "exit": null, "step": 5, "phase": "reduce",
        "message": "as the rank said", "evidence": evidence,
    })
}
