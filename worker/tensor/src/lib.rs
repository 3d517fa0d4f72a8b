//! The training engine: tape, arenas, operations with forward and backward, optimizers. CPU.
