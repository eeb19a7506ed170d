"""The other kernels of a layer, and the embedding."""
