"""A fleet on a Ray cluster. Only `cluster.py` and `manager.py` import Ray, and they are imported by `baton ray` alone.

Ray places processes and tells which nodes there are; `plan.py` decides what is to be where, and `host.py` is what runs
in an actor: the same `baton-scheduler`, `baton-keeper` and `baton-executor` that run everywhere else.
"""
