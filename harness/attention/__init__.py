"""Judging paged-attention kernels: cases, checks, explanations."""
