"""The attention suite: K1 to K14 for any paged-attention kernel."""
