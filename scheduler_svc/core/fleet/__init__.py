"""The lives of executors: which are in the fleet, and when an executor has left it."""
