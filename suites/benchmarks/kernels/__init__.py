"""Benchmarks of attention kernels against the roofline and side by side."""
