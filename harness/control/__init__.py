"""The control plane timed: what a cache manager costs its scheduler, stage by stage."""
