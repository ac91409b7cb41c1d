"""Measurements on the real local stack; `benchmarks/run` prints one table (README.md says what each row means)."""
