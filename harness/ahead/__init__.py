"""Triton kernels compiled ahead of time for GPUs that need not be here, and what came out read.

Nothing is run. What is read is the binary: disassembly and resource notes of the very launches that
an implementation would make. A gate that finds nothing to look at fails.
"""
