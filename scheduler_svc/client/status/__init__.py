"""The work of `baton status`: the report as a table."""
