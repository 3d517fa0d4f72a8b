//! `/v1/me`, `/v1/tokens`, `/v1/join-tokens`: HTTP in, HTTP out.
