"""Batches as they are asked for: the request, and the lines of its input."""
