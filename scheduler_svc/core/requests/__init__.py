"""Requests of frontends: accepted, told, kept for a reader who comes back, and written down before they are told."""
