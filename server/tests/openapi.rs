//! The committed description is that of the handlers.

use std::collections::BTreeSet;

use serde_json::Value;

const COMMITTED: &str = include_str!("../../sdk/openapi.json");

#[test]
fn the_committed_description_is_that_of_the_handlers() {
    let derived = lockstep_server::openapi::document().unwrap();
    assert!(derived == COMMITTED, "sdk/openapi.json is stale: run `cargo xtask generate`");
}

#[test]
fn every_operation_has_an_id_of_its_own_and_problems() {
    let document: Value = serde_json::from_str(COMMITTED).unwrap();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let mut ids = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        assert!(path.starts_with("/v1/"), "{path}");
        for (method, operation) in item.as_object().unwrap() {
            let id = operation["operationId"]
                .as_str()
                .unwrap_or_else(|| panic!("{method} {path} has no id"));
            assert!(ids.insert(id), "{id} is there twice");
            let problem = &operation["responses"]["default"]["content"];
            assert!(problem.is_object(), "{method} {path} names no problem");
        }
    }
}
