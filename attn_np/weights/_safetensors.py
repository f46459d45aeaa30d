"""A strict reader and writer of safetensors files: nothing is allocated before the check that bounds its size.

The format: eight bytes with the header's length, the header (JSON: the dtype, shape and offsets of each tensor), the
tensors without gap. The package `safetensors` reads what is written here; it accepts more than is accepted here.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from attn_np.weights._errors import (
    DuplicateKeyError,
    HeaderLimitError,
    HeaderSyntaxError,
    KeyNameError,
    MissingKeysError,
    OffsetError,
    TrailingDataError,
    TruncatedFileError,
    UnsafeFormatError,
    UnsupportedEncodingError,
    WeightFileError,
    first_names,
)
from attn_np.weights._paths import INDEX_SUFFIX, PathArg, open_regular, path_text, replace_file

MAX_HEADER = 16 * 2**20
MAX_KEYS = 16384
# JSON values in a header, counted before it is parsed: a few bytes of JSON can ask for a hundred times their memory.
MAX_VALUES = 16 * MAX_KEYS
MAX_NAME_LENGTH = 512
# NumPy's own limit. The product of more sizes could grow to millions of digits.
MAX_AXES = 64
SIZE_LIMIT = 2**63
ALIGNMENT = 8

SURROGATES = re.compile("[\ud800-\udfff]")

# Bits of one element, for every dtype of the format.
BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip

# The dtypes that are read, little-endian as in the format.
READABLE = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
CODES = {dtype.name: code for code, dtype in READABLE.items()}

PICKLE_FIX = "save the tensors as safetensors with the library that made them; a pickle can run code when it is opened"
ARCHIVE_FIX = "save its arrays as safetensors with the library that made it; an archive can contain pickles"
# How files begin that are easily taken for weights. Compared only if the first eight bytes are not a possible length.
OTHER_FORMATS: tuple[tuple[bytes, type[WeightFileError], str, str], ...] = (
    (b"PK\x03\x04", UnsafeFormatError, "a zip archive (.npz, .pt or .bin)", ARCHIVE_FIX),
    (b"PK\x05\x06", UnsafeFormatError, "an empty zip archive", ARCHIVE_FIX),
    (b"\x93NUMPY", UnsafeFormatError, "a .npy file", ARCHIVE_FIX),
    (b"\x89HDF", UnsafeFormatError, "an HDF5 file (.h5)", ARCHIVE_FIX),
    (b"\x1f\x8b", UnsafeFormatError, "a gzip archive", ARCHIVE_FIX),
    *(
        (bytes([0x80, protocol]), UnsafeFormatError, "a pickle (.pt, .bin or .pkl)", PICKLE_FIX)
        for protocol in range(2, 6)
    ),
    (b"{", HeaderSyntaxError, "JSON text", f"if it is an index of shards, name it *{INDEX_SUFFIX}"),
    (b"version https://git-lfs", TruncatedFileError, "a Git LFS pointer without the tensors", "run git lfs pull"),
)


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: the format's code of its dtype, its shape, and its offsets after the header."""

    code: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def dtype(self) -> str:
        """The dtype's usual name; the format's code for a dtype that is not read."""
        return READABLE[self.code].name if self.code in READABLE else self.code


class TensorFile:
    """An open safetensors file with a valid header: metadata, and the dtype, shape and offsets of every tensor.

    Tensors are read one by one, straight into arrays of their own. (A memory map would save nothing, as every caller
    needs a copy, and would kill the process if the file is cut while it is read.)

    Attributes:
        path: the file.
        metadata: the texts under the header's `__metadata__`.
        entries: the tensors by name.
        size: bytes of all tensors.

    Raises:
        WeightFileError: the subclass that says what is wrong with the file.
        OSError: no regular file at the path.
    """

    def __init__(self, path: PathArg) -> None:
        self.path = path_text(path)
        self._stream = open_regular(self.path)  # closed by __exit__, and below when the header is bad
        try:
            header = self._header()
            self.metadata = self._metadata(header.pop("__metadata__", {}))
            if len(header) > MAX_KEYS:
                raise HeaderLimitError(
                    self.path, None, f"at most {MAX_KEYS} tensors", str(len(header)), "split the file"
                )
            self.entries = {name: self._entry(name, fields) for name, fields in header.items()}
            self._check_offsets()
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> "TensorFile":
        return self

    def __exit__(self, *exc: object) -> None:
        self._stream.close()

    def metadata_of(self, names: Iterable[str]) -> dict[str, str]:
        """The metadata that goes with some tensors: the file's own."""
        return self.metadata

    def read(self, name: str) -> np.ndarray:
        """One tensor, as an array of its own.

        Raises:
            MissingKeysError: there is no such tensor.
            UnsupportedEncodingError: a dtype that is not read, or a boolean that is neither 0 nor 1.
            TruncatedFileError: the file was cut after its header was read.
        """
        if name not in self.entries:
            fix = f"choose one of {first_names(self.entries)}"
            raise MissingKeysError(self.path, name, "a tensor of this name", "none", fix)
        entry = self.entries[name]
        if entry.code not in READABLE:
            expected = f"one of {', '.join(READABLE)}"
            raise UnsupportedEncodingError(self.path, name, expected, entry.code, "convert the tensor")
        x = self._stored(name, READABLE[entry.code])
        if entry.code == "BOOL" and np.any(x.view(np.uint8) > 1):
            got = str(np.max(x.view(np.uint8)))
            raise UnsupportedEncodingError(self.path, name, "booleans as bytes 0 and 1", got, "write the file again")
        return x

    def read_bytes(self, name: str) -> np.ndarray:
        """One tensor of eight bits, as its bytes stand in the file.

        Raises:
            UnsupportedEncodingError, TruncatedFileError: as `read`.
        """
        return self._stored(name, np.dtype(np.uint8))

    def _stored(self, name: str, dtype: np.dtype[Any]) -> np.ndarray:
        """The bytes of a tensor as an array of a dtype."""
        entry = self.entries[name]
        try:
            x = np.empty(entry.shape, dtype)
        except ValueError as error:  # more axes than this NumPy has, or an axis too long beside one of size 0
            expected = "a shape that an array can have"
            raise UnsupportedEncodingError(self.path, name, expected, str(error), "reshape it") from None
        self._stream.seek(self._start + entry.begin)
        if self._stream.readinto(x.reshape(-1).view(np.uint8)) != x.nbytes:  # type: ignore[attr-defined]
            raise TruncatedFileError(self.path, name, f"{x.nbytes} bytes", "fewer", "the file changed; read it again")
        return x

    # The header -------------------------------------------------------------------------------------------------------

    def _header(self) -> dict[str, Any]:
        size = os.fstat(self._stream.fileno()).st_size
        first_bytes = self._stream.read(max(len(magic) for magic, *_ in OTHER_FORMATS))
        length = int.from_bytes(first_bytes[:8], "little")
        if size < 8 or length > MAX_HEADER:
            for magic, error, kind, fix in OTHER_FORMATS:
                if first_bytes.startswith(magic):
                    raise error(self.path, None, "a safetensors file", kind, fix)
        if size < 8:
            raise TruncatedFileError(self.path, None, "at least 8 bytes", str(size), "get the whole file")
        if length > MAX_HEADER:
            fix = "check that this is a safetensors file"
            raise HeaderLimitError(self.path, None, f"a header of at most {MAX_HEADER} bytes", str(length), fix)
        if length > size - 8:
            got = f"{size - 8} bytes after the length"
            raise TruncatedFileError(self.path, None, f"a header of {length} bytes", got, "get the whole file")
        self._stream.seek(8)
        raw = self._stream.read(length)
        self._start, self.size = 8 + length, size - 8 - length
        return parse_json(self.path, raw, "a header")

    def _metadata(self, fields: Any) -> dict[str, str]:
        got = type(fields).__name__
        if isinstance(fields, dict):
            wrong = [name for name, value in fields.items() if not is_text(name) or not is_text(value)]
            if not wrong:
                return fields
            got = f"none for {first_names(wrong)}"
        fix = "write the file again"
        raise HeaderSyntaxError(self.path, "__metadata__", "a string of Unicode for each name", got, fix)

    def _entry(self, name: str, fields: Any) -> Entry:
        check_name(self.path, name)
        if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
            got = first_names(fields) if isinstance(fields, dict) else type(fields).__name__
            raise HeaderSyntaxError(self.path, name, "dtype, shape and data_offsets", got, "write the file again")
        code, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
        if isinstance(shape, list) and len(shape) > MAX_AXES:
            fix = "reshape the tensor"
            raise HeaderLimitError(self.path, name, f"a shape of at most {MAX_AXES} axes", str(len(shape)), fix)
        if not are_sizes(shape) or not are_sizes(offsets) or len(offsets) != 2:
            got = f"shape {shape!r}"[:80] + f" and data_offsets {offsets!r}"[:80]
            raise HeaderSyntaxError(
                self.path, name, "lists of integers from 0 below 2**63", got, "write the file again"
            )
        if not isinstance(code, str) or code not in BITS:
            expected, fix = "a dtype of the format, little-endian", f"convert it to one of {', '.join(READABLE)}"
            raise UnsupportedEncodingError(self.path, name, expected, repr(code)[:80], fix)
        return Entry(code, tuple(shape), *offsets)

    def _check_offsets(self) -> None:
        """The tensors fill the rest of the file, each just after the one before it."""
        end = 0
        for name, entry in sorted(self.entries.items(), key=lambda item: (item[1].begin, item[1].end)):
            bits = prod(entry.shape) * BITS[entry.code]
            if bits >= 8 * SIZE_LIMIT:
                raise OffsetError(self.path, name, f"fewer than {SIZE_LIMIT} bytes", "more", "write the file again")
            if bits % 8 or entry.end - entry.begin != bits // 8:
                expected = f"{bits // 8} bytes for {entry.code} of shape {entry.shape}"
                got = f"data_offsets [{entry.begin}, {entry.end}]"
                raise OffsetError(self.path, name, expected, got, "write the file again")
            if entry.begin != end:
                kind = "an overlap" if entry.begin < end else "a hole"
                got = f"{kind}: it begins at {entry.begin}"
                raise OffsetError(self.path, name, f"the tensor to begin at {end}", got, "write the file again")
            if (self._start + entry.begin) % max(BITS[entry.code] // 8, 1):
                expected = f"an offset in the file divisible by {BITS[entry.code] // 8}, the size of one {entry.code}"
                fix = "write the file again with a current safetensors"
                raise UnsupportedEncodingError(self.path, name, expected, str(self._start + entry.begin), fix)
            end = entry.end
        if end > self.size:
            got = f"{self.size} bytes"
            raise TruncatedFileError(self.path, None, f"{end} bytes of tensors", got, "get the whole file")
        if end < self.size:
            fix = "remove what was appended, or get the file again"
            raise TrailingDataError(self.path, None, f"{end} bytes of tensors and the end", f"{self.size} bytes", fix)


def write_tensors(path: PathArg, values: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file, whole or not at all. The same content gives the same bytes.

    Raises:
        KeyNameError: a name that no reader here accepts.
        OSError, ValueError: a path that cannot be written, as `replace_file` says.
    """
    path = path_text(path)
    for name in values:
        check_name(path, name)
    # The largest elements first, as the package does: then every tensor is aligned without a gap.
    order = sorted(values, key=lambda name: (-values[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    end = 0
    for name in order:
        begin, end = end, end + values[name].nbytes
        header[name] = {
            "dtype": CODES[values[name].dtype.name],
            "shape": list(values[name].shape),
            "data_offsets": [begin, end],
        }
    raw = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % ALIGNMENT)
    with replace_file(path) as stream:
        stream.write(len(raw).to_bytes(8, "little") + raw)
        for name in order:
            x = np.ascontiguousarray(values[name], READABLE[CODES[values[name].dtype.name]])
            stream.write(x.reshape(-1).view(np.uint8).data)


def parse_json(path: str, raw: bytes, what: str) -> dict[str, Any]:
    """A JSON object, each name once.

    Raises:
        HeaderLimitError, HeaderSyntaxError, DuplicateKeyError: naming `what` it is.
    """
    values = sum(raw.count(sign) for sign in (b",", b"{", b"["))
    if values > MAX_VALUES:
        raise HeaderLimitError(path, None, f"{what} of at most {MAX_VALUES} values", str(values), "split the file")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for name, value in pairs:
            if name in members:
                fix = "write the file again; readers would disagree on which one counts"
                raise DuplicateKeyError(path, name[:80], f"{what} with each name once", "it twice", fix)
            members[name] = value
        return members

    def constant(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    try:
        if not raw.startswith(b"{"):
            raise ValueError(f"it starts with {raw[:1]!r}")
        return json.loads(raw.decode("utf-8"), object_pairs_hook=unique, parse_constant=constant)
    except WeightFileError:
        raise
    except (ValueError, RecursionError) as error:
        expected, fix = f"{what} of JSON in UTF-8 that starts with {{", "check that this is the right file"
        raise HeaderSyntaxError(path, None, expected, str(error)[:200], fix) from None


def check_name(path: str, name: str) -> None:
    """Refuse a tensor's name that is empty, too long or unprintable, or a path that is absolute or has "..".

    Raises:
        KeyNameError: naming it.
    """
    parts = name.replace("\\", "/").split("/")
    if not 0 < len(name) <= MAX_NAME_LENGTH:
        got = f"{len(name)} characters"
    elif not name.isprintable():
        got = "an unprintable character"
    elif ".." in parts or parts[0] == "":
        got = "such a path"
    else:
        return
    expected = f"a name of 1 to {MAX_NAME_LENGTH} printable characters, no absolute path and without '..'"
    raise KeyNameError(path, name[:80], expected, got, "rename the tensor")


def is_text(value: Any) -> bool:
    """Whether a value is a string of whole characters: JSON's escapes can spell the halves of one."""
    return isinstance(value, str) and (value.isascii() or not SURROGATES.search(value))


def are_sizes(value: Any) -> bool:
    """Whether a value is a list of integers from 0 below 2**63. JSON's true is an int in Python: types are compared."""
    return isinstance(value, list) and all(type(x) is int and 0 <= x < SIZE_LIMIT for x in value)
