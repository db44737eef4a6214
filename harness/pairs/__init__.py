"""A cache manager and an attention kernel, tested as a pair."""
