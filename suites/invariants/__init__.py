"""A page for each invariant of the law."""
