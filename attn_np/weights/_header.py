"""A strict reader and writer of safetensors files: every check stands before the memory it protects.

The format: eight bytes with the header's length, the header (JSON: for each tensor its dtype, shape and place), the
tensors without gap. The package `safetensors` reads what is written here; it accepts more than is accepted here.
"""

import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from os import PathLike
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from attn_np.contract import nearest
from attn_np.weights._errors import (
    SHOWN,
    DuplicateKeyError,
    HeaderLimitError,
    HeaderSyntaxError,
    KeyNameError,
    LayoutError,
    MissingKeysError,
    TrailingDataError,
    TruncatedFileError,
    UnsafeFormatError,
    UnsupportedEncodingError,
    WeightFileError,
    listed,
)

MAX_HEADER = 16 * 2**20
MAX_KEYS = 16384
# JSON values in a header, counted before it is parsed: a few bytes of JSON can ask for a hundred times their memory.
MAX_VALUES = 16 * MAX_KEYS
MAX_NAME = 512
MAX_SIZE = 2**63
INDEX_SUFFIX = ".safetensors.index.json"
SUFFIXES = (".safetensors", INDEX_SUFFIX)
ALIGNMENT = 8

HALVES = re.compile("[\ud800-\udfff]")

# Bits of one element, for every dtype that the format knows.
BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip

# The dtypes that are read, little-endian as the format has them.
READ = {
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
CODES = {dtype.name: code for code, dtype in READ.items()}

# How files begin that people take for weights. Only looked at where the first eight bytes are no possible length.
PICKLE = "save the tensors as safetensors where they were made; a pickle can run code when it is opened"
ARCHIVE = "open the archive where it can be trusted and save its arrays as safetensors"
OTHERS: tuple[tuple[bytes, type[WeightFileError], str, str], ...] = (
    (b"PK\x03\x04", UnsafeFormatError, "a zip archive (.npz, .pt or .bin)", ARCHIVE),
    (b"PK\x05\x06", UnsafeFormatError, "an empty zip archive", ARCHIVE),
    (b"\x93NUMPY", UnsafeFormatError, "a .npy file", ARCHIVE),
    (b"\x89HDF", UnsafeFormatError, "an HDF5 file (.h5)", ARCHIVE),
    (b"\x1f\x8b", UnsafeFormatError, "a gzip archive", ARCHIVE),
    *((bytes([0x80, protocol]), UnsafeFormatError, "a pickle (.pt, .bin or .pkl)", PICKLE) for protocol in range(2, 6)),
    (b"{", HeaderSyntaxError, "JSON text", f"where it is an index of shards, name it *{INDEX_SUFFIX}"),
    (b"version https://git-lfs", TruncatedFileError, "a Git LFS pointer without the tensors", "run git lfs pull"),
)


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: the format's code of its dtype, its shape, and its place after the header."""

    code: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def dtype(self) -> str:
        """The dtype's usual name, the format's code for the types that are not read."""
        return READ[self.code].name if self.code in READ else self.code


def open_file(path: str) -> BinaryIO:
    """A file that is there, for reading.

    Raises:
        FileNotFoundError, IsADirectoryError: with the files that may have been meant.
    """
    try:
        return open(path, "rb")
    except FileNotFoundError as error:
        todo = at_hand(os.path.dirname(path) or os.curdir, os.path.basename(path))
        raise FileNotFoundError(f"{path}: expected a weight file, got no file of this name; {todo}") from error
    except IsADirectoryError as error:
        raise IsADirectoryError(f"{path}: expected a weight file, got a folder; {at_hand(path, '')}") from error


def at_hand(folder: str, name: str) -> str:
    """The end of an error message: which weight files a folder holds."""
    if not os.path.isdir(folder):
        return f"there is no folder {folder!r}; check the path"
    known = [file for file in sorted(os.listdir(folder)) if file.endswith(SUFFIXES)]
    return nearest(name, known[: SHOWN * 4]) if known else f"the folder {folder!r} holds none; check the path"


class TensorFile:
    """An open safetensors file whose header holds: metadata, and the dtype, shape and place of every tensor.

    The tensors asked for are read one by one, straight into arrays of their own. (A memory map would save nothing, as
    every caller keeps a copy, and would kill the process if the file is cut while it is read.)

    Attributes:
        path: the file.
        metadata: what the file says about itself.
        entries: the tensors by name.
        size: bytes of all tensors.

    Raises:
        WeightFileError: the subclass that says what is wrong with the file.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._stream = open_file(self.path)  # closed by __exit__, and below when the header is bad
        try:
            header = self._header()
            self.metadata = self._metadata(header.pop("__metadata__", {}))
            if len(header) > MAX_KEYS:
                raise HeaderLimitError(
                    self.path, None, f"at most {MAX_KEYS} tensors", str(len(header)), "split the file"
                )
            self.entries = {name: self._entry(name, fields) for name, fields in header.items()}
            self._places()
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> "TensorFile":
        return self

    def __exit__(self, *exc: object) -> None:
        self._stream.close()

    def read(self, name: str) -> np.ndarray:
        """One tensor, as an array of its own.

        Raises:
            MissingKeysError: there is no such tensor.
            UnsupportedEncodingError: a dtype that is not read, or a boolean that is neither 0 nor 1.
            TruncatedFileError: the file was cut after its header was read.
        """
        if name not in self.entries:
            todo = f"choose one of {listed(self.entries)}"
            raise MissingKeysError(self.path, name, "a tensor of this name", "none", todo)
        entry = self.entries[name]
        if entry.code not in READ:
            raise UnsupportedEncodingError(
                self.path, name, f"one of {', '.join(READ)}", entry.code, "convert the tensor"
            )
        try:
            x = np.empty(entry.shape, READ[entry.code])
        except ValueError as error:  # more axes than an array can have, or an axis too long beside one of size 0
            raise UnsupportedEncodingError(
                self.path, name, "a shape that an array can have", str(error), "reshape it"
            ) from None
        self._stream.seek(self._start + entry.begin)
        if self._stream.readinto(x.reshape(-1).view(np.uint8)) != x.nbytes:  # type: ignore[attr-defined]
            raise TruncatedFileError(self.path, name, f"{x.nbytes} bytes", "fewer", "the file changed; read it again")
        if entry.code == "BOOL" and np.any(x.view(np.uint8) > 1):
            found = str(np.max(x.view(np.uint8)))
            raise UnsupportedEncodingError(self.path, name, "booleans as bytes 0 and 1", found, "write the file again")
        return x

    # The header -------------------------------------------------------------------------------------------------------

    def _header(self) -> dict[str, Any]:
        size = os.fstat(self._stream.fileno()).st_size
        start = self._stream.read(max(len(magic) for magic, *_ in OTHERS))
        length = int.from_bytes(start[:8], "little")
        if size < 8 or length > MAX_HEADER:
            for magic, error, kind, todo in OTHERS:
                if start.startswith(magic):
                    raise error(self.path, None, "a safetensors file", kind, todo)
        if size < 8:
            raise TruncatedFileError(self.path, None, "at least 8 bytes", str(size), "get the whole file")
        if length > MAX_HEADER:
            todo = "check that this is a safetensors file"
            raise HeaderLimitError(self.path, None, f"a header of at most {MAX_HEADER} bytes", str(length), todo)
        if length > size - 8:
            found = f"{size - 8} bytes after the length"
            raise TruncatedFileError(self.path, None, f"a header of {length} bytes", found, "get the whole file")
        self._stream.seek(8)
        raw = self._stream.read(length)
        self._start, self.size = 8 + length, size - 8 - length
        return parsed(self.path, raw, "a header")

    def _metadata(self, fields: Any) -> dict[str, str]:
        found = type(fields).__name__
        if isinstance(fields, dict):
            wrong = [name for name, value in fields.items() if not is_text(name) or not is_text(value)]
            if not wrong:
                return fields
            found = f"none for {listed(wrong)}"
        todo = "write the file again"
        raise HeaderSyntaxError(self.path, "__metadata__", "a string of Unicode for each name", found, todo)

    def _entry(self, name: str, fields: Any) -> Entry:
        check_name(self.path, name)
        if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
            found = listed(fields) if isinstance(fields, dict) else type(fields).__name__
            raise HeaderSyntaxError(self.path, name, "dtype, shape and data_offsets", found, "write the file again")
        code, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
        if not sizes(shape) or not sizes(offsets) or len(offsets) != 2:
            found = f"shape {shape!r}"[:80] + f" and data_offsets {offsets!r}"[:80]
            raise HeaderSyntaxError(self.path, name, "lists of 64-bit integers from 0", found, "write the file again")
        if not isinstance(code, str) or code not in BITS:
            known = "a dtype of the format, little-endian"
            raise UnsupportedEncodingError(
                self.path, name, known, repr(code)[:80], f"convert it to one of {', '.join(READ)}"
            )
        return Entry(code, tuple(shape), *offsets)

    def _places(self) -> None:
        """The tensors fill the rest of the file, each just after the one before it."""
        end = 0
        for name, entry in sorted(self.entries.items(), key=lambda item: (item[1].begin, item[1].end)):
            bits = prod(entry.shape) * BITS[entry.code]
            if bits >= 8 * MAX_SIZE:
                raise LayoutError(self.path, name, f"fewer than {MAX_SIZE} bytes", "more", "write the file again")
            if bits % 8 or entry.end - entry.begin != bits // 8:
                expected = f"{bits // 8} bytes for {entry.code} of shape {entry.shape}"
                found = f"data_offsets [{entry.begin}, {entry.end}]"
                raise LayoutError(self.path, name, expected, found, "write the file again")
            if entry.begin != end:
                kind = "an overlap" if entry.begin < end else "a hole"
                found = f"{kind}: it begins at {entry.begin}"
                raise LayoutError(self.path, name, f"the tensor to begin at {end}", found, "write the file again")
            if (self._start + entry.begin) % max(BITS[entry.code] // 8, 1):
                expected = f"a place in the file divisible by {BITS[entry.code] // 8}, the size of one {entry.code}"
                todo = "write the file again with a current safetensors"
                raise UnsupportedEncodingError(self.path, name, expected, str(self._start + entry.begin), todo)
            end = entry.end
        if end > self.size:
            found = f"{self.size} bytes"
            raise TruncatedFileError(self.path, None, f"{end} bytes of tensors", found, "get the whole file")
        if end < self.size:
            todo = "remove what was appended, or get the file again"
            raise TrailingDataError(self.path, None, f"{end} bytes of tensors and the end", f"{self.size} bytes", todo)


def parsed(path: str, raw: bytes, what: str) -> dict[str, Any]:
    """A JSON object, each name once.

    Raises:
        HeaderLimitError, HeaderSyntaxError, DuplicateKeyError: naming `what` it is.
    """
    values = sum(raw.count(sign) for sign in (b",", b"{", b"["))
    if values > MAX_VALUES:
        raise HeaderLimitError(path, None, f"{what} of at most {MAX_VALUES} values", str(values), "split the file")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                todo = "write the file again; readers would disagree on which one counts"
                raise DuplicateKeyError(path, name[:80], f"{what} with each name once", "it twice", todo)
            found[name] = value
        return found

    def constant(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    try:
        if not raw.startswith(b"{"):
            raise ValueError(f"it starts with {raw[:1]!r}")
        return json.loads(raw.decode("utf-8"), object_pairs_hook=once, parse_constant=constant)
    except WeightFileError:
        raise
    except (ValueError, RecursionError) as error:
        expected, todo = f"{what} of JSON in UTF-8 that starts with {{", "check that this is the right file"
        raise HeaderSyntaxError(path, None, expected, str(error)[:200], todo) from None


def check_name(path: str, name: str) -> None:
    """Refuse a tensor's name that no parameter has.

    Raises:
        KeyNameError: naming it.
    """
    parts = name.replace("\\", "/").split("/")
    if not 0 < len(name) <= MAX_NAME or not name.isprintable() or ".." in parts or parts[0] == "":
        expected = f"a name of 1 to {MAX_NAME} printable characters that is no path upwards"
        raise KeyNameError(path, name[:80], expected, f"{len(name)} characters", "rename the tensor")


def is_text(value: Any) -> bool:
    """A string of whole characters: JSON's escapes can spell the halves of one."""
    return isinstance(value, str) and (value.isascii() or not HALVES.search(value))


def sizes(value: Any) -> bool:
    """A list of 64-bit integers from 0: JSON's true is an int to Python, so types are compared."""
    return isinstance(value, list) and all(type(x) is int and 0 <= x < MAX_SIZE for x in value)


def write_tensors(path: str | PathLike[str], values: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file, whole or not at all.

    It is written under another name in the same folder, brought to the disk, and takes the file's name at the end: a
    crash leaves the old file or the new one. The same content gives the same bytes.
    """
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
    target = os.path.realpath(path)  # through a symbolic link, not in its place
    folder, name = os.path.split(target)
    draft = os.path.join(folder, f".{name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(draft, "xb") as stream:
            stream.write(len(raw).to_bytes(8, "little") + raw)
            for key in order:
                x = np.ascontiguousarray(values[key], READ[CODES[values[key].dtype.name]])
                stream.write(x.reshape(-1).view(np.uint8).data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, target)
    except BaseException:
        if os.path.exists(draft):
            os.remove(draft)
        raise
    sync_folder(folder)


def sync_folder(folder: str) -> None:
    """Bring a renaming to the disk, where the system can open folders."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
