//! The job's settings for this guest.

use serde::de::DeserializeOwned;

use crate::Error;

/// Reads the job's `config` (JSON) into a type of the guest's own. Give it
/// `#[serde(deny_unknown_fields, default)]`, so that a misspelt field is an error and an absent one is not.
pub fn config<T: DeserializeOwned>(json: &str) -> Result<T, Error> {
    serde_json::from_str(json).map_err(|error| Error::Config(error.to_string()))
}
