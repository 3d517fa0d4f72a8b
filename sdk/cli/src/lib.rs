//! The lockstep command line.
