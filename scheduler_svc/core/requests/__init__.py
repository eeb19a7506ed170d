"""Requests of frontends: accepted, told, kept for a reader that comes back, and written down before they are told."""
