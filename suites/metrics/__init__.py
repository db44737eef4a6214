"""Whether the numbers can be trusted: the instrument itself on trial."""
