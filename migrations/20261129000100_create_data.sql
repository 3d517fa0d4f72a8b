-- Bytes by digest. Keyed by project as well: nobody learns from a digest what another project holds.

CREATE TABLE chunk (
    project_id uuid NOT NULL REFERENCES project,
    digest     text NOT NULL,
    data       bytea NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (project_id, digest),
    CONSTRAINT chunk_is_at_most_4_mib CHECK (octet_length(data) <= 4194304)
);
ALTER TABLE chunk ALTER COLUMN data SET STORAGE EXTERNAL;

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
