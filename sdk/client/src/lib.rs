//! The typed HTTP client of Lockstep: retries, paging, problems as errors, live events.
