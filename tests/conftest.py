"""Triton's kernels are interpreted in these tests; TRITON_INTERPRET=0 has a GPU run them instead.

Triton decides when it is imported, which some test or library may do before the kernels' own tests.
"""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
