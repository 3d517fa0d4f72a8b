-- Bytes by digest. Keyed by project as well: nobody learns from a digest what another project holds.

CREATE TABLE chunk (
    project_id uuid NOT NULL REFERENCES project,
    digest     text NOT NULL,
    data       bytea,
    -- With a chunk store other than the database: where the bytes are.
    object_url text,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (project_id, digest),
    CONSTRAINT chunk_is_at_most_4_mib CHECK (octet_length(data) <= 4194304),
    CONSTRAINT chunk_is_bytes_or_an_object CHECK ((data IS NULL) <> (object_url IS NULL))
);
ALTER TABLE chunk ALTER COLUMN data SET STORAGE EXTERNAL;

-- Objects of the chunk store that no chunk refers to: announced before they are put, or let go of. Every object is named by
-- one row, here or in chunk, so that none is ever lost to sight.
CREATE TABLE loose_object (
    url          text PRIMARY KEY,
    project_id   uuid NOT NULL REFERENCES project,
    -- Until when it may become a chunk's.
    claim_before timestamptz NOT NULL,
    -- When it is removed; well after that.
    remove_after timestamptz NOT NULL,
    CONSTRAINT loose_object_is_not_removed_while_claimed CHECK (claim_before < remove_after)
);
CREATE INDEX loose_object_by_removal ON loose_object (remove_after);

CREATE TABLE file (
    project_id uuid NOT NULL REFERENCES project,
    digest     text NOT NULL,
    size_bytes bigint NOT NULL CONSTRAINT file_size_is_not_negative CHECK (0 <= size_bytes),
    chunks     text[] NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (project_id, digest)
);

CREATE TABLE dataset (
    dataset_id uuid PRIMARY KEY,
    project_id uuid NOT NULL REFERENCES project,
    digest     text NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT dataset_digest_is_unique_in_project UNIQUE (project_id, digest)
);

CREATE TABLE dataset_file (
    project_id  uuid NOT NULL REFERENCES project,
    dataset_id  uuid NOT NULL REFERENCES dataset,
    path        text NOT NULL,
    file_digest text NOT NULL,
    size_bytes  bigint NOT NULL,
    PRIMARY KEY (dataset_id, path),
    CONSTRAINT dataset_file_is_a_file FOREIGN KEY (project_id, file_digest) REFERENCES file (project_id, digest)
);

-- A name points to content; jobs keep the digest, so moving a name changes no job.
CREATE TABLE dataset_name (
    project_id uuid NOT NULL REFERENCES project,
    name       text NOT NULL,
    dataset_id uuid NOT NULL REFERENCES dataset,
    PRIMARY KEY (project_id, name)
);
