-- Which of the jobs that wait goes first, and whose slots are taken for whom.

ALTER TYPE stop_purpose ADD VALUE 'preempt';

ALTER TABLE job
    -- More before less. What the job says; here so that the queue can be read in its order.
    ADD COLUMN priority integer NOT NULL DEFAULT 50,
    -- How often its slots were taken for a job of higher priority.
    ADD COLUMN preemptions integer NOT NULL DEFAULT 0,
    ADD CONSTRAINT job_priority_is_0_to_99 CHECK (priority BETWEEN 0 AND 99),
    ADD CONSTRAINT job_preemptions_count_from_zero CHECK (0 <= preemptions);
