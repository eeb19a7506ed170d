"""The work of `baton keys`: the folder with all keys."""
