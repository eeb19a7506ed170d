"""The work of `baton rollout`: what to replace next, and the report. No I/O but the table at the end."""
