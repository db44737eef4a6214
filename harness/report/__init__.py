"""Records as one page: what breaks what, how to see it again, what it costs."""
