"""A deterministic simulator: the real core and executors' state machines on simulated networks, disks and clocks.

One seed is one run, and a run of a seed is always the same. `python -m tests.sim --help` runs many.
"""
