"""The tile of a program of the kernels that go through rows."""

from dataclasses import dataclass

FULL_CHIP_PROGRAMS = 2048
"""With more programs than these, a program takes several rows."""
MAX_ROWS = 4


@dataclass(frozen=True)
class RowTile:
    """`columns` values of each of `rows` rows, both powers of two."""

    rows: int
    columns: int
    num_warps: int

    def constants(self, size: int) -> dict[str, int]:
        """What a kernel is compiled for, with rows of `size` values."""
        return {"SIZE": size, "ROWS": self.rows, "COLUMNS": self.columns, "num_warps": self.num_warps}
