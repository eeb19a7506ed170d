"""What crosses the wire, and what both services need. Nothing in here imports torch or a service."""

__version__ = "0.1.0"
