"""Base against head: whether a change may be merged."""
