"""The keeper: holds descriptors of memory that outlives executors. Imports neither service."""

import common  # noqa: F401  (ends with one line where Baton does not run)
