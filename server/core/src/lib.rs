//! Every decision of the control plane, without I/O: states, placement, leases, retries. Synchronous and deterministic.
