"""Sizes of grids and tiles. Triton has these two as well, at 1.5 µs a call: as much as all else a launcher does."""


def ceil_div(numerator: int, denominator: int) -> int:
    """The smallest integer that is not below `numerator / denominator`."""
    return -(-numerator // denominator)


def next_power_of_two(number: int) -> int:
    """The smallest power of two that is not below `number`, which is 1 or more."""
    return 1 << (number - 1).bit_length()
