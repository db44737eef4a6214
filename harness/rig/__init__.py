"""Continuous batching over a causal language model, around a registered manager and kernel."""
