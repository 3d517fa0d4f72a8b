//! A job's whole state as one safetensors file: written aside, read back, resumed.
