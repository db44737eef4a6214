"""Latency metrics: what is computed from the timelines of requests."""
