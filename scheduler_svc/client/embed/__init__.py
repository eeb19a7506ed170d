"""The work of `baton embed`."""
