"""Paged attention on a GPU: ours in Triton, and flash-attn behind the same interface."""
