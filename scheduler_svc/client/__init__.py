"""The `baton` command: what a person or a script does with a service, over its HTTP interface."""
