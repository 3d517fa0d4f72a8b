//! Local components and data become digests. What the server has does not travel again.

use anyhow::Context as _;
use futures::future::try_join_all;
use lockstep_api::JobSpec;
use lockstep_client::Client;

use crate::job_file::{JobFile, LocalFile};
use crate::out::Out;

/// Uploads everything local and puts the digests in place.
pub(crate) async fn upload(client: &Client, job: JobFile, out: Out) -> anyhow::Result<JobSpec> {
    let JobFile { mut spec, uploads } = job;
    if uploads.is_empty() {
        return Ok(spec);
    }
    // The same path in two fields (one dataset for both splits) travels once.
    let mut unique: Vec<LocalFile> = Vec::new();
    for upload in &uploads {
        if !unique.iter().any(|known| is_same(known, upload)) {
            unique.push(upload.clone());
        }
    }
    let names: Vec<&str> = unique.iter().filter_map(|it| it.path.file_name()).collect();
    let spinner = out.spinner(format!("uploading {}", names.join(", ")));
    let digests = try_join_all(unique.iter().map(|it| upload_one(client, it))).await;
    spinner.finish_and_clear();
    let digests = digests?;
    for upload in uploads {
        let known = unique.iter().position(|known| is_same(known, &upload));
        let digest = known.and_then(|index| digests.get(index));
        upload.field.set(&mut spec, digest.context("every upload has a digest")?.clone());
    }
    Ok(spec)
}

fn is_same(left: &LocalFile, right: &LocalFile) -> bool {
    left.path == right.path && left.field.is_dataset() == right.field.is_dataset()
}

async fn upload_one(client: &Client, local: &LocalFile) -> anyhow::Result<String> {
    let digest = if local.field.is_dataset() {
        client.upload_dataset(&local.path, None).await.map(|dataset| dataset.digest)
    } else {
        client.upload_file(&local.path).await.map(|manifest| manifest.digest)
    };
    let digest =
        digest.with_context(|| format!("uploading {} ({})", local.path, local.field.path()))?;
    Ok(digest.to_string())
}
