"""The executor service: holds the weights and the KV memory, and does what a plan says."""
