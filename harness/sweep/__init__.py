"""Many replays of traces: a grid of cells, on as many workers as there are."""
