"""Whole engines as black boxes."""
