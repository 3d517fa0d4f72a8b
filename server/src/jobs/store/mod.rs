//! Everything the database knows of jobs. No other module names the `job` table.
