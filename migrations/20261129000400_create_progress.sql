-- What attempts leave behind: metrics, ledger, logs, verdicts, checkpoints, events.

CREATE TYPE blame AS ENUM ('user', 'infrastructure');
CREATE TYPE failure_code AS ENUM ('peer_gone', 'not_entered', 'node_lost', 'rendezvous_timeout',
    'interface_unreachable', 'plan_mismatch', 'diverged', 'non_finite', 'guest_trap', 'guest_time_limit', 'guest_memory_limit',
    'guest_stack_overflow', 'guest_output_limit', 'guest_shape', 'guest_error', 'prepare_failed', 'checkpoint_failed',
    'heal_failed', 'rank_error');
CREATE TYPE log_source AS ENUM ('rank', 'guest', 'stderr', 'agent', 'server');
CREATE TYPE log_level AS ENUM ('debug', 'info', 'warn', 'error');
CREATE TYPE job_event_kind AS ENUM ('state', 'metrics', 'log', 'failure', 'checkpoint');

-- Keyed by attempt and step: a step that is done again by a later attempt is another row, and a batch sent twice changes nothing.
CREATE TABLE metric_point (
    project_id uuid NOT NULL REFERENCES project,
    job_id     uuid NOT NULL REFERENCES job,
    attempt_id uuid NOT NULL REFERENCES attempt,
    name       text NOT NULL,
    step       bigint NOT NULL,
    value      double precision NOT NULL,
    PRIMARY KEY (attempt_id, name, step)
);
CREATE INDEX metric_point_of_job ON metric_point (job_id, name, step);

CREATE TABLE ledger_entry (
    project_id     uuid NOT NULL REFERENCES project,
    job_id         uuid NOT NULL REFERENCES job,
    attempt_id     uuid NOT NULL REFERENCES attempt,
    step           bigint NOT NULL,
    data_epoch     bigint NOT NULL,
    first_position bigint NOT NULL,
    sample_count   bigint NOT NULL CONSTRAINT ledger_entry_uses_samples CHECK (0 < sample_count),
    PRIMARY KEY (attempt_id, step)
);
CREATE INDEX ledger_entry_of_job ON ledger_entry (job_id, step);

-- What one rank did in one step: a row a step and rank, so that a page of a timeline is few rows. Times of spans are nanoseconds
-- after began_ns, which is on the node's monotonic clock; clock_at and clock_ns are one moment on both of the node's clocks.
CREATE TABLE step_timeline (
    project_id uuid NOT NULL REFERENCES project,
    job_id     uuid NOT NULL REFERENCES job ON DELETE CASCADE,
    attempt_id uuid NOT NULL REFERENCES attempt ON DELETE CASCADE,
    step       bigint NOT NULL,
    rank       integer NOT NULL,
    generation bigint NOT NULL,
    node_id    uuid NOT NULL REFERENCES node,
    clock_at   timestamptz NOT NULL,
    clock_ns   bigint NOT NULL,
    began_ns   bigint NOT NULL,
    spans      jsonb NOT NULL,
    dropped    bigint NOT NULL,
    PRIMARY KEY (attempt_id, step, rank)
);

CREATE TABLE log_line (
    project_id uuid NOT NULL REFERENCES project,
    job_id     uuid NOT NULL REFERENCES job,
    seq        bigint NOT NULL,
    attempt_id uuid NOT NULL REFERENCES attempt,
    rank       integer,
    source     log_source NOT NULL,
    level      log_level NOT NULL,
    at         timestamptz NOT NULL,
    text       text NOT NULL,
    PRIMARY KEY (job_id, seq)
);

CREATE TABLE failure (
    failure_id uuid PRIMARY KEY,
    -- In the order in which they were filed: several may be filed at one time.
    failure_no bigint GENERATED ALWAYS AS IDENTITY,
    project_id uuid NOT NULL REFERENCES project,
    job_id     uuid NOT NULL REFERENCES job,
    attempt_id uuid NOT NULL REFERENCES attempt,
    generation bigint NOT NULL,
    -- The first failure of a generation is its verdict; later ones are filed as effects of it.
    is_effect  boolean NOT NULL,
    code       failure_code NOT NULL,
    blame      blame NOT NULL,
    rank       integer,
    node_id    uuid REFERENCES node,
    signal     integer,
    exit_code  integer,
    step       bigint,
    phase      phase,
    message    text NOT NULL,
    evidence   jsonb NOT NULL,
    at         timestamptz NOT NULL
);
CREATE UNIQUE INDEX failure_has_one_verdict_per_generation ON failure (attempt_id, generation) WHERE NOT is_effect;
CREATE INDEX failure_of_job ON failure (job_id, at DESC);

-- Faults that jobs asked for and that have happened: each once.
CREATE TABLE chaos_fault (
    project_id  uuid NOT NULL REFERENCES project,
    job_id      uuid NOT NULL REFERENCES job,
    -- Its place in the job's list.
    fault_index integer NOT NULL,
    attempt_id  uuid NOT NULL REFERENCES attempt,
    generation  bigint NOT NULL,
    injected_at timestamptz NOT NULL,
    PRIMARY KEY (job_id, fault_index)
);

-- Its step is the watermark of metrics: an attempt that resumes from it begins at that step (attempt.first_step), and what
-- earlier attempts measured past it is hidden from then on.
CREATE TABLE checkpoint (
    checkpoint_id uuid PRIMARY KEY,
    project_id    uuid NOT NULL REFERENCES project,
    job_id        uuid NOT NULL REFERENCES job,
    attempt_id    uuid NOT NULL REFERENCES attempt,
    step          bigint NOT NULL,
    data_epoch    bigint NOT NULL,
    next_position bigint NOT NULL,
    file_digest   text NOT NULL,
    size_bytes    bigint NOT NULL,
    created_at    timestamptz NOT NULL,
    -- Kept whatever the job says, until it is unpinned.
    pinned_at     timestamptz,
    CONSTRAINT checkpoint_is_a_file FOREIGN KEY (project_id, file_digest) REFERENCES file (project_id, digest),
    CONSTRAINT checkpoint_step_is_unique_in_attempt UNIQUE (attempt_id, step)
);
CREATE INDEX checkpoint_newest_first ON checkpoint (job_id, step DESC);
-- An attempt that has not ended holds the checkpoint that it resumes from, whatever newer ones there are.
ALTER TABLE attempt ADD CONSTRAINT attempt_resumes_from_a_checkpoint
    FOREIGN KEY (resume_checkpoint_id) REFERENCES checkpoint ON DELETE SET NULL;
-- Those that have ended and still hold one: retention looks at their jobs once more.
CREATE INDEX attempt_has_ended_and_holds_a_checkpoint ON attempt (job_id)
    WHERE state = 'ended' AND resume_checkpoint_id IS NOT NULL;

-- An outbox a job: sequence numbers are taken under the job row's lock, so a reader that goes by them misses nothing.
CREATE TABLE job_event (
    project_id uuid NOT NULL REFERENCES project,
    job_id     uuid NOT NULL REFERENCES job,
    seq        bigint NOT NULL,
    kind       job_event_kind NOT NULL,
    at         timestamptz NOT NULL,
    PRIMARY KEY (job_id, seq)
);
