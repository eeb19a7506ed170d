"""From a plan's columns to the tensors of a step."""
