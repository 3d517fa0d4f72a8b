-- Jobs, their attempts, and who runs them.

CREATE TYPE job_state AS ENUM ('queued', 'active', 'paused', 'cancelling', 'succeeded', 'failed', 'cancelled');
CREATE TYPE stop_purpose AS ENUM ('pause', 'move');
CREATE TYPE attempt_state AS ENUM ('placing', 'starting', 'running', 'recovering', 'stopping', 'ended');
CREATE TYPE attempt_outcome AS ENUM ('succeeded', 'failed', 'lease_lost', 'cancelled');
CREATE TYPE phase AS ENUM ('starting', 'forming', 'data', 'forward', 'backward', 'reduce', 'optimizer', 'checkpoint',
                           'evaluation', 'recovering', 'done');

CREATE TABLE job (
    job_id              uuid PRIMARY KEY,
    project_id          uuid NOT NULL REFERENCES project,
    principal_id        uuid NOT NULL REFERENCES principal,
    name                text NOT NULL,
    state               job_state NOT NULL,
    spec                jsonb NOT NULL,
    -- The fence: counts up with every placement, never resets.
    generation          bigint NOT NULL DEFAULT 0,
    waiting             text,
    ranks               integer NOT NULL,
    samples_per_epoch   bigint NOT NULL,
    steps_total         bigint NOT NULL,
    -- Budgets of retries that are left. Never refilled.
    user_retries        integer NOT NULL,
    infrastructure_retries integer NOT NULL,
    -- What its attempt was told to stop for, if the job goes on afterwards.
    stopping            stop_purpose,
    -- After a failure: no attempt begins before.
    not_before          timestamptz,
    -- Why it was not tried again, if that needs saying beside the verdict.
    ended_because       text,
    -- The last sequence numbers given out under this row's lock.
    event_seq           bigint NOT NULL DEFAULT 0,
    log_seq             bigint NOT NULL DEFAULT 0,
    created_at          timestamptz NOT NULL,
    ended_at            timestamptz,
    CONSTRAINT job_stopping_only_if_active CHECK (stopping IS NULL OR state = 'active'),
    -- Written down so that no code path can leave a final job without its end time, or the reverse.
    CONSTRAINT job_ended_at_iff_final
        CHECK ((state IN ('succeeded', 'failed', 'cancelled')) = (ended_at IS NOT NULL))
);
CREATE INDEX job_newest_first ON job (project_id, created_at DESC, job_id DESC);
CREATE INDEX job_unfinished ON job (created_at, job_id) WHERE ended_at IS NULL;

CREATE TABLE idempotency_key (
    project_id  uuid NOT NULL REFERENCES project,
    key         text NOT NULL,
    fingerprint text NOT NULL,
    job_id      uuid NOT NULL REFERENCES job,
    created_at  timestamptz NOT NULL,
    PRIMARY KEY (project_id, key)
);

CREATE TABLE attempt (
    attempt_id           uuid PRIMARY KEY,
    project_id           uuid NOT NULL REFERENCES project,
    job_id               uuid NOT NULL REFERENCES job,
    number               integer NOT NULL,
    generation           bigint NOT NULL,
    state                attempt_state NOT NULL,
    outcome              attempt_outcome,
    attempt_key          text NOT NULL,
    resume_checkpoint_id uuid,
    first_step           bigint NOT NULL DEFAULT 0,
    steps_done           bigint NOT NULL DEFAULT 0,
    lease_expires_at     timestamptz NOT NULL,
    -- Until when every rank's endpoints must be known; absent when its ranks share one group memory.
    rendezvous_by        timestamptz,
    -- While it recovers: since when.
    recovering_since     timestamptz,
    -- When a stop was asked for: after the grace the ranks are killed.
    stop_requested_at    timestamptz,
    created_at           timestamptz NOT NULL,
    first_step_at        timestamptz,
    -- The last collective of which the log has told that somebody is late.
    warned_collective    bigint,
    ended_at             timestamptz,
    CONSTRAINT attempt_number_is_unique_in_job UNIQUE (job_id, number),
    CONSTRAINT attempt_generation_is_unique_in_job UNIQUE (job_id, generation),
    CONSTRAINT attempt_outcome_iff_ended CHECK ((state = 'ended') = (outcome IS NOT NULL)),
    CONSTRAINT attempt_ended_at_iff_ended CHECK ((state = 'ended') = (ended_at IS NOT NULL))
);
-- At most one attempt of a job is at work.
CREATE UNIQUE INDEX attempt_is_the_only_one_at_work ON attempt (job_id) WHERE state <> 'ended';

-- A group of an attempt's ranks: another one after each repair. How long a repair took is the time from its verdict, or from
-- began_at, to first_step_at.
CREATE TABLE group_generation (
    project_id    uuid NOT NULL REFERENCES project,
    attempt_id    uuid NOT NULL REFERENCES attempt,
    generation    bigint NOT NULL,
    world_size    integer NOT NULL,
    began_at      timestamptz NOT NULL,
    formed_at     timestamptz,
    first_step_at timestamptz,
    PRIMARY KEY (attempt_id, generation)
);

-- The processes of an attempt: one a rank, and another when a rank is lost and replaced.
CREATE TABLE group_member (
    project_id uuid NOT NULL REFERENCES project,
    attempt_id uuid NOT NULL REFERENCES attempt,
    -- Counts the attempt's processes.
    process    integer NOT NULL,
    rank       integer NOT NULL,
    node_id    uuid NOT NULL REFERENCES node,
    device     device_kind NOT NULL,
    slot_index integer NOT NULL,
    -- Ranks of an attempt with the same number share a group memory; others reach each other over TCP.
    memory_index integer NOT NULL,
    -- The generation it was started under.
    first_generation bigint NOT NULL,
    -- When its node said that nothing is left to do for it.
    closed_at  timestamptz,
    -- When it was given up and another process took its rank: it belongs to the group no more.
    evicted_at timestamptz,
    -- Where its socket listens, once its node has said so: `ip:port`, best first. Of the present generation.
    endpoints  text[],
    -- When its node said that everything is there that it needs. Of the present generation.
    prepared_at timestamptz,
    pid        integer,
    phase      phase,
    step       bigint,
    -- As of the last heartbeat that spoke of it: never written per collective. Times by this database's side.
    seen_at      timestamptz,
    phase_since  timestamptz,
    last_entered bigint,
    last_left    bigint,
    collective   text,
    entered_at   timestamptz,
    paused_until timestamptz,
    is_stopped   boolean NOT NULL DEFAULT false,
    exit_code  integer,
    signal     integer,
    finished_at timestamptz,
    -- When the node said that the process is gone, or its slot went over to the process that replaces it. Until then its
    -- slot is held.
    released_at timestamptz,
    PRIMARY KEY (attempt_id, process)
);
CREATE UNIQUE INDEX group_member_has_its_rank_alone ON group_member (attempt_id, rank) WHERE evicted_at IS NULL;
-- One rank a slot.
CREATE UNIQUE INDEX group_member_holds_its_slot_alone ON group_member (node_id, device, slot_index)
    WHERE released_at IS NULL;
