"""The lives of executors: who is in the fleet, and when an executor has left it."""
