"""A file of quantised weights, read as the numbers that they stand for.

Each number is the stored one times the stored scale of its block. In float64 that product is exact (the two have at
most 8 + 24 bits), and it is rounded once, to the dtype that is asked for.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import ml_dtypes
import numpy as np

from attn_np.weights._cast import DTYPES
from attn_np.weights._check import checked_cast
from attn_np.weights._errors import DtypeMismatchError, MissingKeysError, ShapeMismatchError
from attn_np.weights._quantization import Scheme
from attn_np.weights._safetensors import CODES, Entry
from attn_np.weights._shards import StoredFile

EIGHT_BITS = {
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
SCALES = ("_scale_inv", "_scale")  # after the name of the weight; both multiply, in spite of the first one's name
SCALE_CODES = ("F64", "F32", "F16", "BF16", "F8_E8M0")
# Scales of inputs, outputs and caches, which are not rounded here.
OTHER_SCALES = (
    "input_scale", "input_scale_ub", "activation_scale", "output_scale", "q_scale", "k_scale", "v_scale",
)  # fmt: skip
ROWS = 128


class DequantizedFile:
    """An open file of quantised weights with `path`, `entries`, `read` and `metadata_of`: its weights without scales.

    Attributes:
        path: the file's path.
        entries: the tensors by name, those that are quantised with the dtype they are read in.
    """

    def __init__(self, file: StoredFile, scheme: Scheme, dtype: str) -> None:
        self._file, self._scheme, self._dtype, self.path = file, scheme, dtype, file.path
        self._scale_of = {
            name.removesuffix(end): name
            for end in reversed(SCALES)
            for name in file.entries
            if name.endswith(f".weight{end}")
        }
        hidden = {*self._scale_of.values()}
        self._names = [
            name for name in file.entries if name not in hidden and name.rpartition(".")[2] not in OTHER_SCALES
        ]
        self.entries: Mapping[str, Entry] = DequantizedEntries(self._names, self._entry)

    def metadata_of(self, names: Iterable[str]) -> dict[str, str]:
        """The metadata that goes with some tensors."""
        return self._file.metadata_of(names)

    def scales_of(self, names: Iterable[str]) -> list[str]:
        """The names of the scales of some tensors."""
        return [self._scale_of[name] for name in names if name in self._scale_of]

    def read(self, name: str) -> np.ndarray:
        """One tensor, its scales applied if it has any.

        Raises:
            ShapeMismatchError: scales that are not one for each block.
            DtypeMismatchError: scales that are no floating-point numbers, or a product beyond the range of the dtype.
            WeightFileError: as `TensorFile.read`.
        """
        if name not in self._scale_of:
            return self._file.read(name)
        scales, (rows, columns) = self._scales(name), self._shape(name)
        stored = self._numbers(name).reshape(rows, columns)
        tall, wide = self._block(rows, columns)
        values = np.empty((rows, columns), DTYPES[self._dtype])
        for start in range(0, rows, ROWS):
            end = min(start + ROWS, rows)
            of_rows = scales[np.arange(start, end) // tall]
            exact = stored[start:end].astype(np.float64) * np.repeat(of_rows, wide, axis=1)[:, :columns]
            values[start:end] = checked_cast(self.path, name, exact, self._dtype, finite=False)
        return values.reshape(self.entries[name].shape)

    def _entry(self, name: str) -> Entry:
        """A tensor's entry, with the dtype it is read in.

        Raises:
            MissingKeysError: a tensor of eight bits without scales.
            DtypeMismatchError: scales beside a tensor that is not of the scheme's dtypes.
        """
        entry = self._file.entries[name]
        if name in self._scale_of and entry.code not in self._scheme.codes:
            expected = f"{' or '.join(self._scheme.codes)}, as it has scales ({self._scheme.words()})"
            fix = "get the file again, or the model unquantised"
            raise DtypeMismatchError(self.path, name, expected, entry.code, fix)
        if name not in self._scale_of and entry.code in EIGHT_BITS:
            expected = f"{name}{SCALES[0]} or {name}{SCALES[1]}, as this tensor is {entry.code}"
            raise MissingKeysError(self.path, name, expected, "neither", "get the file again, or the model unquantised")
        read = name in self._scale_of or self._widens(entry.dtype)
        return Entry(CODES[self._dtype], entry.shape, entry.begin, entry.end) if read else entry

    def _widens(self, dtype: str) -> bool:
        """Whether the dtype that is asked for holds every number of another one."""
        return dtype in DTYPES and np.can_cast(DTYPES[dtype], DTYPES[self._dtype])

    def _shape(self, name: str) -> tuple[int, int]:
        """The rows and columns of a tensor, which are those of a matrix; a vector is one of one row."""
        shape = self._file.entries[name].shape
        return (1, *shape) if len(shape) == 1 else (shape[0], int(np.prod(shape[1:])))

    def _block(self, rows: int, columns: int) -> tuple[int, int]:
        """The rows and columns that share a scale."""
        tall, wide = self._scheme.block
        return tall or max(rows, 1), wide or max(columns, 1)

    def _numbers(self, name: str) -> np.ndarray:
        """The stored numbers of a tensor, or its scales: also those of eight bits, which no layer has."""
        code = self._file.entries[name].code
        return self._file.read_bytes(name).view(EIGHT_BITS[code]) if code in EIGHT_BITS else self._file.read(name)

    def _scales(self, name: str) -> np.ndarray:
        """A tensor's scales in float64, a row for each row of blocks."""
        key, (rows, columns) = self._scale_of[name], self._shape(name)
        tall, wide = self._block(rows, columns)
        expected, entry = (-(-rows // tall), -(-columns // wide)), self._file.entries[key]
        if entry.code not in SCALE_CODES:
            fix = "get the file again, or the model unquantised"
            raise DtypeMismatchError(self.path, key, f"one of {', '.join(SCALE_CODES)}", entry.code, fix)
        # One scale of a tensor may be a number, and those of rows a vector.
        if tuple(n for n in entry.shape if n != 1) != tuple(n for n in expected if n != 1):
            words, fix = f"shape {expected}, {self._scheme.words()}", "get the file again, or the model unquantised"
            raise ShapeMismatchError(self.path, key, words, str(entry.shape), fix)
        return self._numbers(key).astype(np.float64).reshape(expected)


class DequantizedEntries(Mapping[str, Entry]):
    """The tensors of a quantised file, each entry made when it is asked for: its shard may be absent."""

    def __init__(self, names: Iterable[str], entry: Callable[[str], Entry]) -> None:
        self._names, self._entry = dict.fromkeys(names), entry

    def __getitem__(self, name: str) -> Entry:
        if name not in self._names:
            raise KeyError(name)
        return self._entry(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
