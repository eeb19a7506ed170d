"""The subcommands of `baton`."""
