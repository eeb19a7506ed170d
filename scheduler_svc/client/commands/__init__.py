"""The subcommands of `baton`, a module each: options, help, and what is written. The work is in the rooms beside."""
