"""The scheduler service: core, front door and client. Never imports torch."""
