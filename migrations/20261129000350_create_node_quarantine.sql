-- Nodes that broke what ran on them. They belong to the organisation, like nodes.

CREATE TABLE node_blame (
    node_id    uuid NOT NULL REFERENCES node,
    attempt_id uuid NOT NULL REFERENCES attempt,
    at         timestamptz NOT NULL
);
CREATE INDEX node_blame_of_node ON node_blame (node_id, at);

CREATE TABLE node_quarantine (
    node_id uuid PRIMARY KEY REFERENCES node,
    -- Which one in a row, less those that successes made up for.
    count   integer NOT NULL,
    until   timestamptz NOT NULL,
    -- A part of a sentence. Shown to the whole organisation: nothing of a project's.
    reason  text NOT NULL,
    CONSTRAINT node_quarantine_counts_from_one CHECK (0 < count)
);
