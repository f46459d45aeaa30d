"""One file or many: an index maps each tensor to its shard, and both are read in the same way.

The index is that of Hugging Face, `{"metadata": {...}, "weight_map": {tensor: shard}}`, with its shards beside it. A
shard is opened when one of its tensors is needed, so the others may be absent; where keys are renamed, all are opened.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Protocol, runtime_checkable

import numpy as np

from attn_np.weights._errors import (
    ConfigMismatchError,
    HeaderLimitError,
    MissingKeysError,
    ShardIndexError,
    UnexpectedKeysError,
    UnsafePathError,
    first_names,
)
from attn_np.weights._paths import INDEX_SUFFIX, PathArg, open_regular, path_text
from attn_np.weights._safetensors import MAX_HEADER, Entry, TensorFile, are_sizes, check_name, parse_json

MAX_SHARDS = 512
GET_AGAIN = "get the index and its shards again, from one place"


class ShardEntries(Mapping[str, Entry]):
    """The tensors of an index: names from the index, the dtype, shape and offsets from the tensor's shard."""

    def __init__(self, shard_of: Mapping[str, str], open_shard: Callable[[str], TensorFile]) -> None:
        self._shard_of, self._open_shard = shard_of, open_shard

    def __getitem__(self, name: str) -> Entry:
        return self._open_shard(self._shard_of[name]).entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._shard_of  # without opening a shard

    def __iter__(self) -> Iterator[str]:
        return iter(self._shard_of)

    def __len__(self) -> int:
        return len(self._shard_of)


class ShardedFile:
    """An open index with the `path`, `entries`, `read` and `metadata_of` of a `TensorFile`.

    Attributes:
        path: the index.
        entries: the tensors by name.

    Raises:
        WeightFileError: the subclass that says what is wrong with the index or a shard.
        OSError: no regular file at the path.
    """

    def __init__(self, path: PathArg) -> None:
        self.path = path_text(path)
        self._folder = os.path.dirname(self.path)
        index = self._read_index()
        self._shard_of = self._weight_map(index.get("weight_map"))
        self._total_size = self._stated_size(index.get("metadata", {}))
        self._keys_by_shard: dict[str, set[str]] = {}
        for key, shard_name in self._shard_of.items():
            self._keys_by_shard.setdefault(shard_name, set()).add(key)
        for shard_name in self._keys_by_shard:
            self._check_shard_name(shard_name)
        if len(self._keys_by_shard) > MAX_SHARDS:
            fix = "write the tensors again into fewer shards"
            raise HeaderLimitError(self.path, None, f"at most {MAX_SHARDS} shards", str(len(self._keys_by_shard)), fix)
        self._opened: dict[str, TensorFile] = {}
        self._stack = ExitStack()
        self.entries: Mapping[str, Entry] = ShardEntries(self._shard_of, self._open_shard)

    def __enter__(self) -> "ShardedFile":
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def metadata_of(self, names: Iterable[str]) -> dict[str, str]:
        """The metadata that goes with some tensors: that of their shards, which must be the same in all of them.

        Raises:
            ConfigMismatchError: two shards with different metadata.
        """
        shard_names = dict.fromkeys(self._shard_of[name] for name in names)
        shards = [self._open_shard(shard_name) for shard_name in shard_names]
        for shard in shards[1:]:
            one, other = shards[0].metadata, shard.metadata
            if one != other:
                fields = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
                expected = f"the metadata of {os.path.basename(shards[0].path)!r} in every shard"
                got = f"other {first_names(fields)}"
                raise ConfigMismatchError(shard.path, "__metadata__", expected, got, GET_AGAIN)
        return shards[0].metadata if shards else {}

    def read(self, name: str) -> np.ndarray:
        """One tensor, as an array of its own.

        Raises:
            MissingKeysError: there is no such tensor.
            WeightFileError: as `TensorFile.read`.
        """
        if name not in self._shard_of:
            fix = f"choose one of {first_names(self._shard_of)}"
            raise MissingKeysError(self.path, name, "a tensor of this name", "none", fix)
        return self._open_shard(self._shard_of[name]).read(name)

    def read_bytes(self, name: str) -> np.ndarray:
        """One tensor of eight bits, as its bytes stand in the file."""
        return self._open_shard(self._shard_of[name]).read_bytes(name)

    # The index --------------------------------------------------------------------------------------------------------

    def _read_index(self) -> dict[str, Any]:
        with open_regular(self.path) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > MAX_HEADER:
                fix = "check that this is an index"
                raise HeaderLimitError(self.path, None, f"an index of at most {MAX_HEADER} bytes", str(size), fix)
            raw = stream.read(size)
        return parse_json(self.path, raw, "an index")

    def _weight_map(self, shard_of: Any) -> dict[str, str]:
        """The shard of every tensor."""
        if not isinstance(shard_of, dict) or not all(isinstance(shard_name, str) for shard_name in shard_of.values()):
            got = type(shard_of).__name__
            if isinstance(shard_of, dict):
                got = f"none for {first_names(k for k, v in shard_of.items() if not isinstance(v, str))}"[:200]
            expected = "an object with a shard's name for each tensor"
            raise ShardIndexError(self.path, "weight_map", expected, got, GET_AGAIN)
        for key in shard_of:
            check_name(self.path, key)
        return shard_of

    def _stated_size(self, metadata: Any) -> int | None:
        """The bytes of all tensors, if the index gives them as an integer: old writers gave fractions."""
        if not isinstance(metadata, dict):
            raise ShardIndexError(self.path, "metadata", "an object", type(metadata).__name__, GET_AGAIN)
        total = metadata.get("total_size")
        if type(total) is not int:
            return None
        if not are_sizes([total]):
            raise ShardIndexError(self.path, "total_size", "an integer from 0 below 2**63", str(total)[:40], GET_AGAIN)
        return total

    # The shards -------------------------------------------------------------------------------------------------------

    def _check_shard_name(self, shard_name: str) -> None:
        """Refuse a shard whose name is more than a plain file name: on some system it could lead elsewhere."""
        if not shard_name.isprintable() or shard_name in ("", ".", "..") or set(shard_name) & set("/\\:"):
            expected = "the plain name of a file beside the index, without / \\ : or control characters"
            raise UnsafePathError(
                self.path, shard_name[:80], expected, f"{len(shard_name)} characters", "correct the index"
            )

    def _open_shard(self, shard_name: str) -> TensorFile:
        """A shard, opened at its first use and checked against the index."""
        if shard_name not in self._opened:
            shard = self._stack.enter_context(TensorFile(self._shard_path(shard_name)))
            self._check_keys(shard, self._keys_by_shard[shard_name])
            self._opened[shard_name] = shard
            self._check_size()
        return self._opened[shard_name]

    def _shard_path(self, shard_name: str) -> str:
        path = os.path.join(self._folder, shard_name)
        folder, target = os.path.realpath(self._folder), os.path.realpath(path)
        if not target.startswith(os.path.join(folder, "")):
            fix = "copy the shards themselves into the folder of the index"
            raise UnsafePathError(
                self.path, shard_name, "a file inside the folder of the index", "a link out of it", fix
            )
        if not os.path.isfile(path):
            got = "no regular file" if os.path.exists(path) else "no file"
            raise ShardIndexError(
                self.path, shard_name, "a shard of this name beside the index", got, "get the shard too"
            )
        return path

    def _check_keys(self, shard: TensorFile, indexed: set[str]) -> None:
        """Refuse a shard that lacks tensors of the index, or has others."""
        shard_name = os.path.basename(shard.path)
        missing, unindexed = sorted(indexed - set(shard.entries)), sorted(set(shard.entries) - indexed)
        if missing:
            expected, got = f"{first_names(missing)} in {shard_name!r}", "none there"
            raise ShardIndexError(self.path, missing[0], expected, got, GET_AGAIN)
        if unindexed:
            expected, got = (
                f"an entry in the index for every tensor of {shard_name!r}",
                f"none for {first_names(unindexed)}",
            )
            raise ShardIndexError(self.path, unindexed[0], expected, got, GET_AGAIN)

    def _check_size(self) -> None:
        """Refuse open shards that are larger than the index says all are, or, if all are open, not as large."""
        if self._total_size is None:
            return
        size, complete = (
            sum(shard.size for shard in self._opened.values()),
            len(self._opened) == len(self._keys_by_shard),
        )
        if size > self._total_size or (complete and size != self._total_size):
            expected = f"{self._total_size} bytes of tensors in the shards"
            got = f"{size} in {'all' if complete else 'some'} of them"
            raise ShardIndexError(self.path, "total_size", expected, got, GET_AGAIN)


@runtime_checkable
class OpenFile(Protocol):
    """A file of tensors by name, as they are stored or with other names or dtypes."""

    path: str

    @property
    def entries(self) -> Mapping[str, Entry]: ...

    def metadata_of(self, names: Iterable[str]) -> dict[str, str]: ...

    def read(self, name: str) -> np.ndarray: ...


class RenamedFile:
    """An open file whose tensors go by other names, with `path`, `entries`, `read` and `metadata_of`.

    Attributes:
        path: the file's path.
        entries: the tensors by their new names.

    Raises:
        UnexpectedKeysError: two tensors of one new name.
    """

    def __init__(self, file: OpenFile, rename: Callable[[str], str]) -> None:
        self._file, self.path = file, file.path
        self._names: dict[str, str] = {}
        for name in file.entries:
            renamed = rename(name)
            if renamed in self._names:
                got = f"{self._names[renamed]!r} and {name!r}"
                raise UnexpectedKeysError(file.path, name, "one name for each tensor", got, "remove one of them")
            self._names[renamed] = name
        self.entries: Mapping[str, Entry] = {renamed: file.entries[name] for renamed, name in self._names.items()}

    def metadata_of(self, names: Iterable[str]) -> dict[str, str]:
        """The metadata that goes with some tensors."""
        return self._file.metadata_of([self._names[name] for name in names])

    def read(self, name: str) -> np.ndarray:
        """One tensor."""
        return self._file.read(self._names[name])


StoredFile = TensorFile | ShardedFile


def open_tensors(path: PathArg) -> TensorFile | ShardedFile:
    """An open safetensors file, or the index of several.

    Raises:
        WeightFileError: the subclass that says what is wrong with it.
        OSError: no regular file at the path.
    """
    return ShardedFile(path) if path_text(path).endswith(INDEX_SUFFIX) else TensorFile(path)


def tensors(path: PathArg, *names: str) -> dict[str, np.ndarray]:
    """Arrays of any safetensors file, or of an index of several, by name; all of them if none is named.

    Raises:
        WeightFileError: the subclass that says what is wrong with the file.
        OSError: no regular file at the path.
    """
    with open_tensors(path) as file:
        return {name: file.read(name) for name in names or file.entries}
