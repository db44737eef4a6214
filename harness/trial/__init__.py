"""The harness on trial: planted faults must be convicted, and correct oddities must not."""
