"""The front door: HTTP on one side, the scheduler's core on the other; the only place where text exists."""
