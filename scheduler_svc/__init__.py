"""The scheduler service: core, frontend and client. Never imports torch."""

import sys

import common  # ends with one line where Baton does not run

if not hasattr(common, "IS_BATON"):
    sys.stderr.write("%r is another project's; install Baton into an environment of its own.\n" % common)  # noqa: UP031
    sys.exit(2)
