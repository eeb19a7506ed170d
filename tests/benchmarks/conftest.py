import pytest

from benchmarks.rig.checkpoints import SHAPES, write_checkpoint


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Checkpoints of the two tiny shapes, in several files each."""
    root = tmp_path_factory.mktemp("checkpoints")
    return {name: write_checkpoint(root / name, SHAPES[name], shard_bytes=2**20) for name in ("tiny", "tiny-moe")}
