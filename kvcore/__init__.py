"""kvcore: a deterministic, I/O-free scheduler core for large-model inference fleets."""
