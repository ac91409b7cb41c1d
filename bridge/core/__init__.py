"""Decisions: values in, values out. Nothing here awaits, reads a clock, draws a random number, logs or does I/O."""
