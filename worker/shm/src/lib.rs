//! Memory shared between the processes of a node: mapped pages, futex words, the flight record. The unsafe floor of the worker.
