"""The invariants that can convict from inside an engine; `naming` says which one when.

S2 is an engine that brings no tokens any more (`playing.Stuck`).
"""

INSIDE_LAW = ("A2", "A7", "A8", "C1", "P1", "P2", "P4", "P5", "S1", "S2")
