"""The work of `baton generate`: what it asks for, and how it writes answers."""
