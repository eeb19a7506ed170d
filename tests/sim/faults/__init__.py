"""What goes wrong. A kind of fault is a function of the scene and of randomness; it says whether there was anything
that it could do it to.
"""
