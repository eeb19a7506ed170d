"""The keeper: holds descriptors of memory that outlives executors. Imports neither service."""

import sys

import common  # ends with one line where Baton does not run

if not hasattr(common, "IS_BATON"):
    sys.stderr.write("%r is another project's; install Baton into an environment of its own.\n" % common)  # noqa: UP031
    sys.exit(2)
