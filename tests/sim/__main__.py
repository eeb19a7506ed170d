"""python -m tests.sim."""

import sys

from tests.sim.cli import main

sys.exit(main())
