"""The device inside an engine: what a worker writes and reads, slot by slot."""
