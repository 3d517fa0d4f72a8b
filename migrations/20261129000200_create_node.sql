-- Machines and what they offer. Nodes belong to the organisation, not to a project.

CREATE TYPE device_kind AS ENUM ('cpu', 'cuda');

CREATE TABLE join_token (
    public_id       text PRIMARY KEY,
    organisation_id uuid NOT NULL REFERENCES organisation,
    secret_hash     bytea NOT NULL,
    created_at      timestamptz NOT NULL,
    expires_at      timestamptz NOT NULL
);

CREATE TABLE node (
    node_id            uuid PRIMARY KEY,
    organisation_id    uuid NOT NULL REFERENCES organisation,
    name               text NOT NULL,
    token_public_id    text NOT NULL CONSTRAINT node_token_public_id_is_unique UNIQUE,
    token_hash         bytea NOT NULL,
    boot_id            text,
    -- Machine and network namespace of its agent, as it said at its last poll.
    host               text,
    memory_mib         integer NOT NULL,
    -- Grows with every change of the node's set of assignments: what a parked poll waits for.
    assignment_version bigint NOT NULL DEFAULT 1,
    -- The highest report handled; a report at or below it is a repetition.
    acked_seq          bigint NOT NULL DEFAULT 0,
    joined_at          timestamptz NOT NULL,
    last_seen_at       timestamptz NOT NULL,
    lease_expires_at   timestamptz NOT NULL,
    -- Since when it takes no new work because someone asked.
    drain_requested_at timestamptz,
    CONSTRAINT node_name_is_unique_in_organisation UNIQUE (organisation_id, name)
);

CREATE TABLE slot (
    node_id     uuid NOT NULL REFERENCES node,
    device      device_kind NOT NULL,
    slot_index  integer NOT NULL,
    cores       integer NOT NULL,
    memory_mib  integer NOT NULL,
    model       text,
    device_uuid text,
    PRIMARY KEY (node_id, device, slot_index)
);
