"""Decoders: their descriptions, parameters, forward pass, checkpoints, and their parts on several ranks."""
