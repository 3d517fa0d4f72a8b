//! Real servers, agents and ranks on one machine, asserted from outside.
