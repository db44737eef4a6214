"""Readers of public request traces: lengths, times and block ids, never a prompt's text."""
