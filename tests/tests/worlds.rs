//! The same job on 1, 2 and 3 ranks: the same curve, and what it leaves can be used elsewhere.

use std::process::Command;

use anyhow::Context as _;
use lockstep_e2e::{Service, python};

const JOB: &str = "examples/digits/job.toml";

#[tokio::test]
async fn any_number_of_ranks_gives_the_same_curve_bit_for_bit_with_the_fixed_tree()
-> anyhow::Result<()> {
    let service = Service::start(3).await?;
    let mut curves = Vec::new();
    for ranks in ["gang.ranks=1", "gang.ranks=2", "gang.ranks=3"] {
        let job = service.train(JOB, &[ranks, "train.epochs=4"]).await?;
        let ledger = service.client.ledger(job.summary.id).await?;
        assert_eq!(ledger.complete_epochs, [0, 1, 2, 3]);
        let test_loss = job.metrics["eval/loss"].to_bits();
        curves.push((service.curve(job.summary.id).await?, test_loss));
    }
    assert!(!curves[0].0.is_empty());
    assert_eq!(curves[0], curves[1]);
    assert_eq!(curves[0], curves[2]);
    Ok(())
}

/// The whole training of the digits in steps of twelve grains, on 1, 2, 3, 4 and 6 ranks, over shared memory, TCP and both:
/// the same bytes are saved.
#[tokio::test]
async fn twelve_grains_leave_the_same_bytes_on_any_number_of_ranks_whatever_carries_them()
-> anyhow::Result<()> {
    let train = async |service: &Service, ranks: u32, transport: &str| {
        let (ranks, transport) =
            (format!("gang.ranks={ranks}"), format!("ddp.transport={transport}"));
        let grains = ["train.global_batch=192", "train.micro_batch=16"];
        let settings = [&grains[..], &[&ranks, &transport]].concat();
        let job = service.train(JOB, &settings).await?;
        let file = job.checkpoints.first().context("the last state is kept")?.file.clone();
        anyhow::Ok((file, service.curve(job.summary.id).await?))
    };
    let one_node = Service::start(6).await?;
    let alone = train(&one_node, 1, "auto").await?;
    assert!(!alone.1.is_empty());
    for ranks in [2, 3, 4, 6] {
        for transport in ["shm", "tcp"] {
            let together = train(&one_node, ranks, transport).await?;
            assert_eq!(together, alone, "{ranks} ranks over {transport}");
        }
    }
    drop(one_node);
    let mut two_nodes = Service::start(3).await?;
    two_nodes.add_agent("second", 3).await?;
    for ranks in [4, 6] {
        assert_eq!(train(&two_nodes, ranks, "auto").await?, alone, "{ranks} ranks on two nodes");
    }
    Ok(())
}

#[tokio::test]
async fn the_fast_reduction_agrees_with_one_process_to_five_digits() -> anyhow::Result<()> {
    let service = Service::start(3).await?;
    let fast = "ddp.reduction=fast";
    let alone = service.train(JOB, &["gang.ranks=1", "train.epochs=2", fast]).await?;
    let alone = service.losses(alone.summary.id).await?;
    for ranks in ["gang.ranks=2", "gang.ranks=3"] {
        let together = service.train(JOB, &[ranks, "train.epochs=2", fast]).await?;
        let together = service.losses(together.summary.id).await?;
        assert_eq!(alone.len(), together.len());
        for ((step, one), (_, many)) in alone.iter().zip(&together) {
            assert!(
                (one - many).abs() <= 1e-5 * one.abs(),
                "{ranks}, step {step}: {one} and {many}"
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_digits_job_learns_and_its_checkpoint_opens_in_python() -> anyhow::Result<()> {
    let service = Service::start(2).await?;
    let job = service.train(JOB, &[]).await?;
    assert!(0.95 <= job.metrics["eval/accuracy"], "{:?}", job.metrics);
    let checkpoint = job.checkpoints.first().context("the last state is kept")?;
    assert_eq!(Some(checkpoint.step), job.summary.steps_total);

    let file = service.folder().join("weights.safetensors");
    let mut download = service.lockstep();
    download.args(["checkpoint", "download", &job.summary.id.to_string(), "-o", file.as_str()]);
    let output = download.output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let script = "import sys; from safetensors.numpy import load_file
tensors = load_file(sys.argv[1])
print(tensors['layers.0.weight'].shape, tensors['layers.0.weight'].dtype)";
    let python = Command::new(python()?).args(["-c", script, file.as_str()]).output()?;
    anyhow::ensure!(python.status.success(), "{}", String::from_utf8_lossy(&python.stderr));
    assert_eq!(String::from_utf8(python.stdout)?.trim(), "(128, 64) float32");
    Ok(())
}
