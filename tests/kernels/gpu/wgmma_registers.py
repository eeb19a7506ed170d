"""Looks in machine code for registers that an asynchronous product may still use when something else takes them.

Hopper's warp-group products (SASS HGMMA) go on while the warp does, until WARPGROUP.DEPBAR waits for them. Versions of
ptxas have used the registers of an operand again too early (triton-lang/triton#11781), which shows as wrong values now
and then. The check follows every path from a product to the wait.
"""

import re
from collections.abc import Iterator

_LINE = re.compile(r"/\*([0-9a-f]{4,5})\*/\s+(.*?)\s*;")
_PREDICATE = re.compile(r"@!?U?P\w+\s+")
_PRODUCT = re.compile(r"HGMMA\.\d+x(\d+)x\d+\.\S+\s+R(\d+),\s+(?:R(\d+),)?")
_WAIT = re.compile(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x0")
_END = re.compile(r"(EXIT|RET|BRA)\b")
_JUMP = re.compile(r"BRA\b.*\b0x([0-9a-f]+)")
_REGISTER = re.compile(r"\bR(\d+)\b")
_FIRST_OPERAND = re.compile(r"\S+\s+(?:!?U?P\w+,\s*)*R(\d+)\b")
_WITHOUT_RESULT = re.compile(
    r"(ST|RED|BAR|BRA|WARP|DEPBAR|LDGDEPBAR|LDGSTS|MEMBAR|CCTL|ERRBAR|CGAERRBAR|[IF]SETP|PLOP|R2|U|S2U)"
)
_OPERAND_REGISTERS = 4


def misused_registers(sass: str) -> list[str]:
    """A sentence for each register of a product under way that another instruction writes, or whose sum it touches.

    Args:
        sass: of one kernel, as cuobjdump prints it.
    """
    code = [(int(line[1], 16), line[2]) for line in map(_LINE.search, sass.splitlines()) if line]
    found = []
    for index, (place, text) in enumerate(code):
        product = _PRODUCT.match(text)
        if product is None:
            continue
        first = int(product[2])
        sums = set(range(first, first + int(product[1]) // 2))
        operand = set(range(int(product[3]), int(product[3]) + _OPERAND_REGISTERS)) if product[3] else set()
        for at, other in _until_it_has_ended(code, index + 1):
            if _written(other) & operand or _touched(other) & sums:
                found.append(f"{text} at {place:#x} may not have ended at {at:#x}: {other}")
    return found


def _until_it_has_ended(code: list[tuple[int, str]], start: int) -> Iterator[tuple[int, str]]:
    """The instructions other than products that can follow before all products have ended, each once."""
    indices = {place: index for index, (place, _) in enumerate(code)}
    seen: set[int] = set()
    paths = [start]
    while paths:
        index = paths.pop()
        while index < len(code) and index not in seen:
            seen.add(index)
            place, predicated = code[index]
            text = _PREDICATE.sub("", predicated)
            if _WAIT.match(text):
                break
            if jump := _JUMP.match(text):
                paths.append(indices[int(jump[1], 16)])
            elif not text.startswith("HGMMA"):
                yield place, text
            if _END.match(predicated):  # without a condition
                break
            index += 1


def _touched(text: str) -> set[int]:
    return {int(number) for number in _REGISTER.findall(text)} | _written(text)


def _written(text: str) -> set[int]:
    """Registers of an instruction's result, of which SASS names the first."""
    name = text.split(maxsplit=1)[0]
    target = _FIRST_OPERAND.match(text)
    if target is None or _WITHOUT_RESULT.match(name):
        return set()
    parts = name.split(".")
    count = 4 if "128" in parts or (parts[0] == "LDSM" and "4" in parts) else 1
    if "64" in parts or "WIDE" in parts or (parts[0] == "LDSM" and "2" in parts):
        count = 2
    return set(range(int(target[1]), int(target[1]) + count))
