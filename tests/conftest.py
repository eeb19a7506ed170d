"""Settings for every test process: two cores are shared by several of them."""

import atexit
import os
import shutil
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if not os.path.exists("/dev/nvidiactl"):  # Triton asks once, when it is imported, whether to interpret kernels
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Where a scheduler keeps its journal if it is not told: not among those of whoever runs the tests.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="baton-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)
