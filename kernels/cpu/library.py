"""The C functions of the compiled library, as ctypes knows them. Pointers are addresses of tensors."""

import ctypes
from pathlib import Path

_POINTER, _INT, _SIZE, _FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
_CODES = {"p": _POINTER, "i": _INT, "n": _SIZE, "f": _FLOAT}

# Result and arguments: p a pointer, i an int, n an int64, f a float; an empty result is void.
SIGNATURES = {
    "request_tiles": ("i", ""),
    "advise_huge_pages": ("", "pn"),
    "pin_threads": ("i", "pi"),
    "read_memory": ("f", "pni"),
    "packed_size": ("n", "nn"),
    "pack_weight": ("", "pnnnnpi"),
    "linear": ("", "pnpppnnnnii"),
    "packed_int8_size": ("n", "nn"),
    "pack_int8_weight": ("", "pnnnnppi"),
    "linear_int8": ("", "pnppppnnnnii"),
    "rms_norm": ("", "pnpfpnnni"),
    "add_rms_norm": ("", "pnpnpfpnnni"),
    "silu_and_mul": ("", "pnpnnni"),
    "embed_tokens": ("", "ppppnpnnni"),
    "qk_norm_rope_store": ("", "pnpppppppfpnnnnni"),
    "paged_attention": ("", "pnpppnppfpnnnnni"),
    "argmax": ("", "pnpnni"),
    "sample": ("", "pnipppnni"),
    "adjust_logits": ("", "pnippnpnnni"),
    "log_probs": ("", "pnipppnpnnnni"),
}


class Library:
    """A loaded library: one attribute for each name in SIGNATURES. Calls release the interpreter's lock."""

    def __init__(self, path: Path) -> None:
        functions = ctypes.CDLL(str(path))
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(functions, f"baton_{name}")
            function.restype = _CODES[result] if result else None
            function.argtypes = [_CODES[code] for code in arguments]
            setattr(self, name, function)

    def __getattr__(self, name: str) -> "ctypes._NamedFuncPointer":  # for type checkers; the real ones are set above
        raise AttributeError(name)
