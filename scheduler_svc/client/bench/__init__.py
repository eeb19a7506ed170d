"""The work of `baton bench`: the load, and what it measured."""
