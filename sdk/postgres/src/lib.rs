//! A private Postgres cluster in a folder of ours: found, initialised, started, adopted, stopped.
