"""State trees to JSON plus named tensors, and back, exactly.

A state tree is made of dicts (``str`` or ``int`` keys), lists, tuples, torch tensors, numpy arrays and the
plain values None, bool, int, float and str. What JSON has, stays as it is; the rest becomes an object with
one marker:

=============================================== ==================================================
``{"$tensor": name, "dtype": …, "shape": […]}`` a torch tensor, stored under ``name``
``{"$array": name, "dtype": …, "shape": […]}``  a numpy array, stored under ``name``
``{"$tuple": […]}``                             a tuple
``{"$dict": [[key, value], …]}``                a dict that has an int key
``{"$float": "nan" | "inf" | "-inf"}``          a float that JSON has no word for
``{"$int": "-0x…"}``                            an int of 2**53 and more, which other JSON readers would round
=============================================== ==================================================

Keys that begin with ``$`` belong to the codec. Nothing here can name a class or a function, so decoding can
build nothing but the values above.
"""

import math
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from rl_training.utils.errors import CheckpointError

Tree: TypeAlias = Any
"""A state tree (see the module docstring); recursive and invariant types would only burden the callers."""
Json: TypeAlias = Any
"""What the json module reads and writes."""

MAX_DEPTH: Final = 100
MAX_PLAIN_INT: Final = 2**53 - 1

DTYPE_CODES: Final = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}
"""What a tensor file can hold: torch's names of the dtypes, and the format's."""

TENSOR_DTYPES: Final = frozenset(DTYPE_CODES)
ARRAY_DTYPES: Final = frozenset(name for name in DTYPE_CODES if not name.startswith(("bfloat", "float8")))
"""Those that numpy has too, under the same names."""

_HEX_INT = re.compile(r"-?0x[0-9a-f]+")
_SPECIAL_FLOATS: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def encode(tree: Tree, where: str = "state") -> tuple[Json, dict[str, torch.Tensor]]:
    """Split ``tree`` into a JSON value and contiguous CPU tensors by name.

    Tensors that lie contiguous on the CPU are not copied: write them out before they change. Tensors that
    share memory are stored once each; the sharing itself is not kept. ``where`` names the tree in errors.
    """
    encoder = _Encoder(where)
    return encoder.value(tree, "", 0), encoder.tensors


def decode(value: Json, tensors: Mapping[str, torch.Tensor], where: str = "state") -> Tree:
    """The tree that ``encode`` was given. Every tensor must be used exactly once; arrays share its memory."""
    decoder = _Decoder(tensors, where)
    tree = decoder.value(value, "", 0)
    unused = sorted(set(tensors) - decoder.used)
    if unused:
        raise CheckpointError(f"{where}: {len(unused)} tensors are not part of the state, e.g. {unused[0]!r}")
    return tree


class _Encoder:
    def __init__(self, where: str) -> None:
        self.where = where
        self.tensors: dict[str, torch.Tensor] = {}

    def value(self, value: Tree, path: str, depth: int) -> Json:
        # Exact types only: an IntEnum, a named tuple or a numpy scalar would come back as something else.
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if -MAX_PLAIN_INT <= value <= MAX_PLAIN_INT else {"$int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        if isinstance(value, torch.Tensor):
            return self.tensor(value, path)
        if kind is np.ndarray:
            return self.array(value, path)
        if depth >= MAX_DEPTH:
            raise self.error(path, f"nested deeper than {MAX_DEPTH} levels (does it contain itself?)")
        if kind is dict or kind is OrderedDict:
            return self.dict(value, path, depth)
        if kind is list:
            return [self.value(item, f"{path}.{i}", depth + 1) for i, item in enumerate(value)]
        if kind is tuple:
            return {"$tuple": [self.value(item, f"{path}.{i}", depth + 1) for i, item in enumerate(value)]}
        hint = "convert it with .item()" if isinstance(value, np.generic) else "keep plain values in the state"
        raise self.error(path, f"{kind.__module__}.{kind.__qualname__} is not a state value; {hint}")

    def dict(self, value: dict[Any, Tree], path: str, depth: int) -> Json:
        for key in value:
            if type(key) not in (int, str):
                raise self.error(path, f"key {key!r} is neither str nor int")
            if str(key).startswith("$"):
                raise self.error(path, f"key {key!r}: names that begin with '$' are reserved")
        items = {key: self.value(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
        if all(type(key) is str for key in items):
            return items
        return {"$dict": [[self.value(key, path, depth), item] for key, item in items.items()]}

    def tensor(self, value: torch.Tensor, path: str) -> Json:
        dtype = str(value.dtype).removeprefix("torch.")
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
            raise self.error(path, f"{type(value).__qualname__} ({value.layout}) is not a plain dense tensor")
        if value.device.type == "meta" or dtype not in TENSOR_DTYPES:
            raise self.error(path, f"a tensor of dtype {dtype} on {value.device} cannot be stored")
        # Lazy conjugation and negation are flags on a view; the file holds the values themselves.
        dense = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        return self.store("$tensor", dense, dtype, path)

    def array(self, value: np.ndarray, path: str) -> Json:
        dtype = value.dtype.name
        if dtype not in ARRAY_DTYPES or not value.dtype.isnative:
            raise self.error(path, f"an array of dtype {value.dtype!r} cannot be stored")
        dense = np.asarray(value, order="C")
        if not dense.flags.writeable:
            dense = dense.copy()  # torch warns about borrowing read-only memory
        return self.store("$array", torch.from_numpy(dense), dtype, path)

    def store(self, marker: str, dense: torch.Tensor, dtype: str, path: str) -> Json:
        # The name is for people who open the file with other tools; "a.b" and {"a": {"b"}} want the same one.
        wanted = path.removeprefix(".").encode("utf-8", "replace").decode() or "value"
        name, count = wanted, 0
        while name in self.tensors or name == "__metadata__":
            count += 1
            name = f"{wanted}~{count}"
        self.tensors[name] = dense
        return {marker: name, "dtype": dtype, "shape": list(dense.shape)}

    def error(self, path: str, problem: str) -> CheckpointError:
        return CheckpointError(f"cannot save {self.where}{path[:200]}: {problem}")


class _Decoder:
    def __init__(self, tensors: Mapping[str, torch.Tensor], where: str) -> None:
        self.tensors = tensors
        self.where = where
        self.used: set[str] = set()

    def value(self, value: Json, path: str, depth: int) -> Tree:
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int):
            if not -MAX_PLAIN_INT <= value <= MAX_PLAIN_INT:
                raise self.error(path, "a plain integer of 2**53 or more")
            return value
        if isinstance(value, float):
            if not math.isfinite(value):
                raise self.error(path, "a plain number that is not finite")
            return value
        if depth >= MAX_DEPTH:
            raise self.error(path, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, list):
            return [self.value(item, f"{path}.{i}", depth + 1) for i, item in enumerate(value)]
        if not isinstance(value, dict):
            raise self.error(path, f"{type(value).__name__} is not JSON")
        marker = next((key for key in value if not isinstance(key, str) or key.startswith("$")), None)
        if marker is None:
            return {key: self.value(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
        if marker in ("$tensor", "$array"):
            return self.tensor(marker, value, path)
        if len(value) != 1:
            raise self.error(path, f"{marker!r} stands beside other keys")
        return self.marked(marker, value[marker], path, depth)

    def marked(self, marker: str, content: Json, path: str, depth: int) -> Tree:
        if marker == "$tuple" and isinstance(content, list):
            return tuple(self.value(item, f"{path}.{i}", depth + 1) for i, item in enumerate(content))
        if marker == "$dict" and isinstance(content, list):
            return self.pairs(content, path, depth)
        if marker == "$float" and isinstance(content, str) and content in _SPECIAL_FLOATS:
            return _SPECIAL_FLOATS[content]
        if marker == "$int" and isinstance(content, str) and _HEX_INT.fullmatch(content):
            return int(content, 16)
        raise self.error(path, f"unknown or malformed marker {marker!r}")

    def pairs(self, content: list[Json], path: str, depth: int) -> dict[Any, Tree]:
        result: dict[Any, Tree] = {}
        for pair in content:
            if not (isinstance(pair, list) and len(pair) == 2):
                raise self.error(path, "'$dict' needs [key, value] pairs")
            # A big int key is itself a marked value, hence the decoding; a bool would pass for 0 or 1.
            key = self.value(pair[0], path, depth + 1)
            if type(key) not in (int, str) or key in result:
                raise self.error(path, f"key {key!r} is repeated or neither str nor int")
            result[key] = self.value(pair[1], f"{path}.{key}", depth + 1)
        return result

    def tensor(self, marker: str, value: dict[str, Json], path: str) -> torch.Tensor | np.ndarray:
        name, dtype, shape = value[marker], value.get("dtype"), value.get("shape")
        if len(value) != 3 or not (isinstance(name, str) and isinstance(dtype, str) and isinstance(shape, list)):
            raise self.error(path, f"malformed {marker!r}")
        tensor = self.tensors.get(name)
        if tensor is None:
            raise self.error(path, f"tensor {name!r} is missing")
        if name in self.used:
            raise self.error(path, f"tensor {name!r} is used twice")
        self.used.add(name)
        found_dtype, found_shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
        if (found_dtype, found_shape) != (dtype, shape):
            found, wanted = f"{found_dtype}{found_shape}", f"{dtype}{shape}"
            raise self.error(path, f"tensor {name!r} is {found}, but the state says {wanted}")
        if dtype not in (TENSOR_DTYPES if marker == "$tensor" else ARRAY_DTYPES):
            raise self.error(path, f"dtype {dtype} is not allowed for {marker!r}")
        if marker == "$tensor":
            return tensor
        try:
            return tensor.numpy()
        except (TypeError, ValueError, RuntimeError) as error:  # e.g. an empty shape too large for numpy
            raise self.error(path, str(error)) from error

    def error(self, path: str, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.where}{path[:200]}: {problem[:500]}")
