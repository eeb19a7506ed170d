"""The work of `baton bench`: workloads and traces, the server under load, and what was measured."""
