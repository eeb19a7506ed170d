"""The scheduler service: core, frontend and client. Never imports torch."""

import common  # noqa: F401  (ends with one line where Baton does not run)
