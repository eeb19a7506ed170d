"""The `baton` command: everything a person or a script does with a running service, over its HTTP interface."""
