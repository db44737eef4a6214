"""Whole engines as black boxes: S1 to S3 by what comes out of their streams."""
