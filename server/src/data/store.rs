//! Everything the database knows of chunks, files and datasets. No other module names these tables.

pub(crate) mod objects;

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use lockstep_api::{DatasetFile, DatasetId, DatasetView, Digest, FileManifest, ProjectId};
use sqlx::{PgConnection, query, query_scalar};

fn texts(digests: &[Digest]) -> Vec<String> {
    digests.iter().map(|digest| digest.as_str().to_owned()).collect()
}

/// A digest that the database holds: it was checked on the way in.
fn digest(text: &str) -> sqlx::Result<Digest> {
    text.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

fn without(asked: &[Digest], there: Vec<String>) -> Vec<Digest> {
    let there: HashSet<String> = there.into_iter().collect();
    asked.iter().filter(|digest| !there.contains(digest.as_str())).cloned().collect()
}

/// Those that the project lacks, in the order asked.
pub(crate) async fn missing_chunks(
    db: &mut PgConnection,
    project: ProjectId,
    asked: &[Digest],
) -> sqlx::Result<Vec<Digest>> {
    let there = query_scalar!(
        "SELECT digest FROM chunk WHERE project_id = $1 AND digest = ANY ($2)",
        project as ProjectId,
        &texts(asked),
    )
    .fetch_all(db)
    .await?;
    Ok(without(asked, there))
}

/// Likewise, and those that are there stay until the transaction ends, so that a file may refer to them.
pub(crate) async fn hold_chunks(
    db: &mut PgConnection,
    project: ProjectId,
    asked: &[Digest],
) -> sqlx::Result<Vec<Digest>> {
    let there = query_scalar!(
        "SELECT digest FROM chunk WHERE project_id = $1 AND digest = ANY ($2) ORDER BY digest FOR KEY SHARE",
        project as ProjectId,
        &texts(asked),
    )
    .fetch_all(db)
    .await?;
    Ok(without(asked, there))
}

/// Stores a chunk whose digest was checked, in its row. Again: changes nothing.
pub(crate) async fn put_chunk(
    db: &mut PgConnection,
    project: ProjectId,
    digest: &Digest,
    data: &[u8],
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    query!(
        "INSERT INTO chunk (project_id, digest, data, created_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
        project as ProjectId,
        digest.as_str(),
        data,
        now,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Where a chunk's bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoredChunk {
    /// In its row.
    Row(Vec<u8>),
    /// An object with this URL.
    Object(String),
}

/// The bytes, or where they are.
pub(crate) async fn find_chunk(
    db: &mut PgConnection,
    project: ProjectId,
    digest: &Digest,
) -> sqlx::Result<Option<StoredChunk>> {
    let row = query!(
        "SELECT data, object_url FROM chunk WHERE project_id = $1 AND digest = $2",
        project as ProjectId,
        digest.as_str(),
    )
    .fetch_optional(db)
    .await?;
    // The schema has no chunk with neither.
    Ok(row.and_then(|row| match row.object_url {
        Some(url) => Some(StoredChunk::Object(url)),
        None => row.data.map(StoredChunk::Row),
    }))
}

/// Those that the project lacks, in the order asked.
pub(crate) async fn missing_files(
    db: &mut PgConnection,
    project: ProjectId,
    asked: &[Digest],
) -> sqlx::Result<Vec<Digest>> {
    let there = query_scalar!(
        "SELECT digest FROM file WHERE project_id = $1 AND digest = ANY ($2)",
        project as ProjectId,
        &texts(asked),
    )
    .fetch_all(db)
    .await?;
    Ok(without(asked, there))
}

/// Records a file that was read back, whose chunks are held ([`hold_chunks`]). Again: changes nothing.
pub(crate) async fn insert_file(
    db: &mut PgConnection,
    project: ProjectId,
    file: &FileManifest,
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    query!(
        "INSERT INTO file (project_id, digest, size_bytes, chunks, created_at) VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT DO NOTHING",
        project as ProjectId,
        file.digest.as_str(),
        file.size_bytes,
        &texts(&file.chunks),
        now,
    )
    .execute(db)
    .await
    .map(drop)
}

/// The manifest.
pub(crate) async fn find_file(
    db: &mut PgConnection,
    project: ProjectId,
    wanted: &Digest,
) -> sqlx::Result<Option<FileManifest>> {
    let row = query!(
        "SELECT size_bytes, chunks FROM file WHERE project_id = $1 AND digest = $2",
        project as ProjectId,
        wanted.as_str(),
    )
    .fetch_optional(db)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let chunks = row.chunks.iter().map(|text| digest(text)).collect::<sqlx::Result<_>>()?;
    Ok(Some(FileManifest { digest: wanted.clone(), size_bytes: row.size_bytes, chunks }))
}

/// The lengths of those files that are there. They stay until the transaction ends.
pub(crate) async fn hold_files(
    db: &mut PgConnection,
    project: ProjectId,
    asked: &[Digest],
) -> sqlx::Result<HashMap<String, i64>> {
    let rows = query!(
        "SELECT digest, size_bytes FROM file WHERE project_id = $1 AND digest = ANY ($2)
         ORDER BY digest FOR KEY SHARE",
        project as ProjectId,
        &texts(asked),
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.digest, row.size_bytes)).collect())
}

/// Records a dataset, or finds the one with that digest.
pub(crate) async fn insert_dataset(
    db: &mut PgConnection,
    project: ProjectId,
    new_id: DatasetId,
    digest: &Digest,
    files: &[DatasetFile],
    now: DateTime<Utc>,
) -> sqlx::Result<DatasetId> {
    let inserted = query_scalar!(
        r#"
        INSERT INTO dataset (dataset_id, project_id, digest, created_at) VALUES ($1, $2, $3, $4)
        ON CONFLICT DO NOTHING
        RETURNING dataset_id AS "id: DatasetId"
        "#,
        new_id as DatasetId,
        project as ProjectId,
        digest.as_str(),
        now,
    )
    .fetch_optional(&mut *db)
    .await?;
    let Some(id) = inserted else {
        return query_scalar!(
            r#"SELECT dataset_id AS "id: DatasetId" FROM dataset WHERE project_id = $1 AND digest = $2"#,
            project as ProjectId,
            digest.as_str(),
        )
        .fetch_one(db)
        .await;
    };
    let paths: Vec<String> = files.iter().map(|file| file.path.clone()).collect();
    let digests: Vec<String> = files.iter().map(|file| file.file.as_str().to_owned()).collect();
    let sizes: Vec<i64> = files.iter().map(|file| file.size_bytes).collect();
    query!(
        "INSERT INTO dataset_file (project_id, dataset_id, path, file_digest, size_bytes)
         SELECT $1, $2, path, file_digest, size_bytes
         FROM unnest($3::text[], $4::text[], $5::bigint[]) AS file (path, file_digest, size_bytes)",
        project as ProjectId,
        id as DatasetId,
        &paths,
        &digests,
        &sizes,
    )
    .execute(db)
    .await?;
    Ok(id)
}

/// Points a name to content.
pub(crate) async fn name_dataset(
    db: &mut PgConnection,
    project: ProjectId,
    name: &str,
    id: DatasetId,
) -> sqlx::Result<()> {
    query!(
        "INSERT INTO dataset_name (project_id, name, dataset_id) VALUES ($1, $2, $3)
         ON CONFLICT (project_id, name) DO UPDATE SET dataset_id = excluded.dataset_id",
        project as ProjectId,
        name,
        id as DatasetId,
    )
    .execute(db)
    .await
    .map(drop)
}

/// A dataset by name or digest, with its files.
pub(crate) async fn find_dataset(
    db: &mut PgConnection,
    project: ProjectId,
    name_or_digest: &str,
) -> sqlx::Result<Option<DatasetView>> {
    let row = query!(
        r#"
        SELECT dataset.dataset_id AS "id: DatasetId", dataset.digest, min(name.name) AS name
        FROM dataset
        LEFT JOIN dataset_name AS name USING (project_id, dataset_id)
        WHERE dataset.project_id = $1
          AND (dataset.digest = $2
               OR dataset.dataset_id = (SELECT dataset_id FROM dataset_name WHERE project_id = $1 AND name = $2))
        GROUP BY dataset.dataset_id
        "#,
        project as ProjectId,
        name_or_digest,
    )
    .fetch_optional(&mut *db)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let name = row
        .name
        .map(|first| if name_or_digest == row.digest { first } else { name_or_digest.to_owned() });
    let files = files_of(db, row.id).await?;
    Ok(Some(DatasetView { id: row.id, digest: digest(&row.digest)?, name, files }))
}

/// The files of the dataset with that digest, ordered by path.
pub(crate) async fn dataset_files(
    db: &mut PgConnection,
    project: ProjectId,
    wanted: &Digest,
) -> sqlx::Result<Option<Vec<DatasetFile>>> {
    let id = query_scalar!(
        r#"SELECT dataset_id AS "id: DatasetId" FROM dataset WHERE project_id = $1 AND digest = $2"#,
        project as ProjectId,
        wanted.as_str(),
    )
    .fetch_optional(&mut *db)
    .await?;
    match id {
        Some(id) => files_of(db, id).await.map(Some),
        None => Ok(None),
    }
}

async fn files_of(db: &mut PgConnection, id: DatasetId) -> sqlx::Result<Vec<DatasetFile>> {
    let rows = query!(
        r#"SELECT path, file_digest, size_bytes FROM dataset_file WHERE dataset_id = $1 ORDER BY path COLLATE "C""#,
        id as DatasetId,
    )
    .fetch_all(db)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(DatasetFile {
                path: row.path,
                file: digest(&row.file_digest)?,
                size_bytes: row.size_bytes,
            })
        })
        .collect()
}
