"""A manager and a kernel inside a running engine."""
