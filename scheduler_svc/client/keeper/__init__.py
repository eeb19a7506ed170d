"""The work of `baton keeper`: asking the keeper of this machine, and its report as a table."""
