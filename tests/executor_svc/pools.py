"""A small pool, of which a keeper is told."""

import torch

from common.messages import PoolKind
from executor_svc.model.attention import KVGeometry

GEOMETRY = KVGeometry(num_layers=2, num_kv_heads=2, head_dim=64, block_size=16, dtype=torch.float32)  # 8 KiB a part
KIND = PoolKind(fingerprint="f", dtype="float32", layout="l")
NUM_BLOCKS = 5
