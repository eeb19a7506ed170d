"""Mixtures of experts on a GPU."""
