"""Load: requests sent as a process says, whatever becomes of those before, and watched."""
