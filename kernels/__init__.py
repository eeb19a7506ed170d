"""Kernels, and a plain-torch twin of each in `kernels.reference`. Nothing in here imports another part of Baton.

Hugging Face has a package of this name too, and transformers probes for it; `tests/kernels/test_coexistence.py`
holds that the two do not get in each other's way.
"""
