"""The frontend: HTTP on one side, the scheduler's core on the other. Text exists only here and in clients."""
