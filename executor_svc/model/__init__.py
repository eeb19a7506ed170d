"""Qwen3 and Qwen3-MoE: parameters, forward pass, checkpoints, and their parts on several ranks."""
