"""Which files weights would be read from, and in which state: if that is as it was, so are the weights."""

from pathlib import Path

import msgspec
from blake3 import blake3

from common.errors import CheckpointError
from common.gguf import read_gguf
from common.model_reading import MAX_INDEX_BYTES, read_model_file
from executor_svc.model.checkpoint import INDEX_FILE, stored_files
from executor_svc.model.config import DecoderConfig, identity

_VERSION = 2
_MAX_HEADER_BYTES = 100_000_000  # of the format: safetensors itself reads no longer one


def source_key(folder: Path, config: DecoderConfig) -> str:
    """BLAKE3 over the configuration, and over each file of weights: name, device, inode, size, times, and its header.

    The time of the last change of an inode is among them, which no program can set back: who writes into a file in
    place and restores its modification time is noticed, too. Anything that differs means other weights, perhaps.

    Args:
        folder: of safetensors files, or a GGUF file.
        config: of the model.

    Raises:
        CheckpointError: a file is missing or cannot be read.
    """
    files = []
    lengths: dict[Path, int | None] = {**read_gguf(folder).header_bytes} if folder.is_file() else {}
    for path in sorted(lengths or stored_files(folder)):
        try:
            with path.open("rb") as file:
                length = lengths.get(path) or int.from_bytes(file.read(8), "little")
                header = file.read(min(length, _MAX_HEADER_BYTES))
                state = path.stat()
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
        times = (state.st_mtime_ns, state.st_ctime_ns)
        facts = (path.name, state.st_dev, state.st_ino, state.st_size, *times, length)
        files.append((*facts, blake3(header).digest()))
    index = read_model_file(folder / INDEX_FILE, MAX_INDEX_BYTES)
    return blake3(msgspec.msgpack.encode((_VERSION, identity(config), index, files))).hexdigest()
