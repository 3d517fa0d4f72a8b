//! Who there is: organisations, their projects, and the members of those.

pub(crate) mod store;
