"""Runs plans: the model, the KV cache and the lanes come together here."""
