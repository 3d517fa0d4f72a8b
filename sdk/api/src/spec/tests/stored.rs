//! Jobs as earlier versions stored them.

use super::DIGEST;
use crate::{
    Activation, ArchSpec, CheckpointSpec, DdpSpec, EvalSpec, JobSpec, MlpSpec, OptimizerSpec,
    SgdSpec, TraceSpec, TrainSpec,
};

/// As it stood in a row before there were other architectures, optimizers and schedules.
fn stored(optimizer: &str) -> String {
    let guest = format!(
        r#"{{"component":"{DIGEST}","config":{{}},"limits":{{"memory_mib":256,"call_ms":10000,"output_mib":128}}}}"#
    );
    format!(
        r#"{{"name":"old","model":{{"arch":"mlp","inputs":64,"hidden":[128],"classes":10}},
        "data":{{"train":"{DIGEST}","eval":null}},"loader":{guest},"loss":{guest},
        "train":{{"global_batch":128,"micro_batch":32,"epochs":20,"max_steps":null,"seed":0,"optimizer":{optimizer}}},
        "ddp":{{"bucket_mib":25,"first_bucket_mib":1,"reduction":"fast"}},
        "gang":{{"ranks":1,"slot":{{"device":"cpu","cores":1,"memory_mib":512}}}},
        "timeouts":{{"collective":"60s"}},"checkpoint":{{"every_steps":null,"keep_last":2}},
        "retry":{{"user":0,"infrastructure":3}},"labels":{{}}}}"#
    )
}

#[test]
fn a_stored_job_means_what_it_meant() {
    let text = stored(r#"{"name":"sgd","lr":0.1,"momentum":0.9,"weight_decay":0.0}"#);
    let spec: JobSpec = serde_json::from_str(&text).unwrap();
    assert_eq!(spec.check(), vec![]);
    let mlp = MlpSpec { inputs: 64, hidden: vec![128], classes: 10, activation: Activation::Relu };
    assert_eq!(spec.model, ArchSpec::Mlp(mlp).into());
    let sgd =
        SgdSpec { lr: 0.1, momentum: 0.9, dampening: 0.0, nesterov: false, weight_decay: 0.0 };
    assert_eq!(spec.train, TrainSpec::new(128, 32, 20, OptimizerSpec::Sgd(sgd)));
    assert_eq!((spec.eval, spec.trace), (EvalSpec::default(), TraceSpec::default()));
    assert_eq!(spec.ddp, DdpSpec::default());
    assert_eq!(spec.checkpoint, CheckpointSpec::default());
}

#[test]
fn a_stored_adamw_reads_with_its_settings() {
    let text =
        stored(r#"{"name":"adamw","lr":0.003,"betas":[0.9,0.95],"eps":1e-8,"weight_decay":0.1}"#);
    let spec: JobSpec = serde_json::from_str(&text).unwrap();
    assert_eq!(spec.check(), vec![]);
    assert!(matches!(&spec.train.optimizer, OptimizerSpec::Adamw(it) if it.betas == [0.9, 0.95]));
}
