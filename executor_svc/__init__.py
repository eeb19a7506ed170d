"""The executor service: holds the weights and the KV memory, and does what a plan says."""

import common  # noqa: F401  (ends with one line where Baton does not run)
