"""The scheduler service: core, frontend and client. Never imports torch."""
