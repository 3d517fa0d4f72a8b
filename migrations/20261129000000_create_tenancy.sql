-- Who there is, and what they may touch.

DO $$ BEGIN
    CREATE ROLE lockstep_app NOLOGIN NOBYPASSRLS;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;
DO $$ BEGIN
    CREATE ROLE lockstep_system NOLOGIN NOBYPASSRLS;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;

CREATE TYPE role AS ENUM ('viewer', 'member', 'maintainer', 'admin');

CREATE TABLE organisation (
    organisation_id uuid PRIMARY KEY,
    name            text NOT NULL CONSTRAINT organisation_name_is_unique UNIQUE,
    created_at      timestamptz NOT NULL
);

CREATE TABLE project (
    project_id      uuid PRIMARY KEY,
    organisation_id uuid NOT NULL REFERENCES organisation,
    name            text NOT NULL,
    created_at      timestamptz NOT NULL,
    CONSTRAINT project_name_is_unique_in_organisation UNIQUE (organisation_id, name)
);

CREATE TABLE principal (
    principal_id uuid PRIMARY KEY,
    name         text NOT NULL,
    created_at   timestamptz NOT NULL
);

CREATE TABLE member (
    project_id   uuid NOT NULL REFERENCES project,
    principal_id uuid NOT NULL REFERENCES principal,
    role         role NOT NULL,
    PRIMARY KEY (project_id, principal_id)
);

-- The secret is shown once; only its SHA-256 is kept.
CREATE TABLE access_token (
    token_id     uuid PRIMARY KEY,
    project_id   uuid NOT NULL REFERENCES project,
    principal_id uuid NOT NULL REFERENCES principal,
    name         text NOT NULL,
    public_id    text NOT NULL CONSTRAINT access_token_public_id_is_unique UNIQUE,
    secret_hash  bytea NOT NULL,
    role         role NOT NULL,
    created_at   timestamptz NOT NULL,
    expires_at   timestamptz,
    revoked_at   timestamptz
);

-- What changed, by whom. Append only.
CREATE TABLE audit_event (
    audit_event_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id     uuid NOT NULL REFERENCES project,
    principal_id   uuid NOT NULL REFERENCES principal,
    token_id       uuid NOT NULL REFERENCES access_token,
    action         text NOT NULL,
    object         text NOT NULL,
    request_id     text,
    at             timestamptz NOT NULL
);
