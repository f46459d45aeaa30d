"""One file or many: an index says which shard holds each tensor, and both are read in the same way.

The index is that of Hugging Face, `{"metadata": {...}, "weight_map": {tensor: shard}}`, and its shards lie beside it. A
shard is opened when one of its tensors is needed: the others may be absent.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from os import PathLike
from typing import Any

import numpy as np

from attn_np.weights._errors import (
    ConfigMismatchError,
    HeaderLimitError,
    MissingKeysError,
    ShardIndexError,
    UnsafePathError,
    listed,
)
from attn_np.weights._header import INDEX_SUFFIX, MAX_HEADER, Entry, TensorFile, check_name, open_file, parsed, sizes

MAX_SHARDS = 512
AGAIN = "get the index and its shards again, from one place"


class ShardEntries(Mapping[str, Entry]):
    """The tensors of an index: their names at once, each dtype, shape and place from the shard that holds it."""

    def __init__(self, shard_of: Mapping[str, str], shard: Callable[[str], TensorFile]) -> None:
        self._shard_of, self._shard = shard_of, shard

    def __getitem__(self, name: str) -> Entry:
        return self._shard(self._shard_of[name]).entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._shard_of  # without opening a shard

    def __iter__(self) -> Iterator[str]:
        return iter(self._shard_of)

    def __len__(self) -> int:
        return len(self._shard_of)


class ShardedFile:
    """An open index that offers what a `TensorFile` does.

    Attributes:
        path: the index.
        entries: the tensors by name.

    Raises:
        WeightFileError: the subclass that says what is wrong with the index or a shard.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._folder = os.path.dirname(self.path)
        index = self._index()
        self._shard_of = self._weight_map(index.get("weight_map"))
        self._total = self._total_size(index.get("metadata", {}))
        self._keys: dict[str, set[str]] = {}
        for key, name in self._shard_of.items():
            self._keys.setdefault(name, set()).add(key)
        for name in self._keys:
            self._check_path(name)
        if len(self._keys) > MAX_SHARDS:
            todo = "write the tensors again into fewer shards"
            raise HeaderLimitError(self.path, None, f"at most {MAX_SHARDS} shards", str(len(self._keys)), todo)
        self._open: dict[str, TensorFile] = {}
        self._stack = ExitStack()
        self.entries: Mapping[str, Entry] = ShardEntries(self._shard_of, self._shard)

    def __enter__(self) -> "ShardedFile":
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def metadata(self) -> dict[str, str]:
        """What the shards say about themselves, which must be the same in all of them.

        Raises:
            ConfigMismatchError: two shards that say different things.
        """
        shards = [self._shard(name) for name in self._keys]
        for shard in shards[1:]:
            said, known = shard.metadata, shards[0].metadata
            if said != known:
                fields = sorted(name for name in said.keys() | known.keys() if said.get(name) != known.get(name))
                expected = f"the metadata of {os.path.basename(shards[0].path)!r} in every shard"
                raise ConfigMismatchError(shard.path, "__metadata__", expected, f"other {listed(fields)}", AGAIN)
        return shards[0].metadata if shards else {}

    def read(self, name: str) -> np.ndarray:
        """One tensor, as an array of its own.

        Raises:
            MissingKeysError: there is no such tensor.
            WeightFileError: as `TensorFile.read`.
        """
        if name not in self._shard_of:
            todo = f"choose one of {listed(self._shard_of)}"
            raise MissingKeysError(self.path, name, "a tensor of this name", "none", todo)
        return self._shard(self._shard_of[name]).read(name)

    # The index --------------------------------------------------------------------------------------------------------

    def _index(self) -> dict[str, Any]:
        with open_file(self.path) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > MAX_HEADER:
                todo = "check that this is an index"
                raise HeaderLimitError(self.path, None, f"an index of at most {MAX_HEADER} bytes", str(size), todo)
            raw = stream.read(size)
        return parsed(self.path, raw, "an index")

    def _weight_map(self, found: Any) -> dict[str, str]:
        """Every tensor's shard."""
        if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
            wrong = listed(k for k, v in found.items() if not isinstance(v, str)) if isinstance(found, dict) else ""
            got = f"none for {wrong}"[:200] if wrong else type(found).__name__
            raise ShardIndexError(self.path, "weight_map", "an object with a shard's name for each tensor", got, AGAIN)
        for key in found:
            check_name(self.path, key)
        return found

    def _total_size(self, metadata: Any) -> int | None:
        """The bytes of all tensors, where the index gives them as an integer: old writers gave fractions."""
        if not isinstance(metadata, dict):
            raise ShardIndexError(self.path, "metadata", "an object", type(metadata).__name__, AGAIN)
        total = metadata.get("total_size")
        if type(total) is not int:
            return None
        if not sizes([total]):
            raise ShardIndexError(self.path, "total_size", "a 64-bit integer from 0", str(total)[:40], AGAIN)
        return total

    # The shards -------------------------------------------------------------------------------------------------------

    def _check_path(self, name: str) -> None:
        """A shard is named by a plain file name, which leads nowhere else on any system."""
        if not name.isprintable() or name in ("", ".", "..") or set(name) & set("/\\:"):
            expected = "the plain name of a file beside the index, without / \\ : or control characters"
            raise UnsafePathError(self.path, name[:80], expected, f"{len(name)} characters", "correct the index")

    def _shard(self, name: str) -> TensorFile:
        """A shard, opened at its first use and checked against the index."""
        if name not in self._open:
            shard = self._stack.enter_context(TensorFile(self._place(name)))
            self._check_keys(shard, self._keys[name])
            self._open[name] = shard
            self._check_size()
        return self._open[name]

    def _place(self, name: str) -> str:
        path = os.path.join(self._folder, name)
        home, real = os.path.realpath(self._folder), os.path.realpath(path)
        if not real.startswith(os.path.join(home, "")):
            todo = "copy the shards themselves into the folder of the index"
            raise UnsafePathError(self.path, name, "a file inside the folder of the index", "a link out of it", todo)
        if not os.path.isfile(path):
            got = "no regular file" if os.path.exists(path) else "no file"
            raise ShardIndexError(self.path, name, "a shard of this name beside the index", got, "get the shard too")
        return path

    def _check_keys(self, shard: TensorFile, mapped: set[str]) -> None:
        """A shard holds the tensors that the index says it holds, and no other."""
        name = os.path.basename(shard.path)
        missing, more = sorted(mapped - set(shard.entries)), sorted(set(shard.entries) - mapped)
        if missing:
            raise ShardIndexError(self.path, missing[0], f"{listed(missing)} in {name!r}", "none there", AGAIN)
        if more:
            expected, got = f"a place in the index for every tensor of {name!r}", f"none for {listed(more)}"
            raise ShardIndexError(self.path, more[0], expected, got, AGAIN)

    def _check_size(self) -> None:
        """The open shards are not larger than the index says all are; where all are open, they are as large."""
        if self._total is None:
            return
        held, complete = sum(shard.size for shard in self._open.values()), len(self._open) == len(self._keys)
        if held > self._total or (complete and held != self._total):
            got = f"{held} in {'all' if complete else 'some'} of them"
            raise ShardIndexError(self.path, "total_size", f"{self._total} bytes of tensors in the shards", got, AGAIN)


Tensors = TensorFile | ShardedFile


def opened(path: str | PathLike[str]) -> Tensors:
    """A safetensors file, or the index of several.

    Raises:
        WeightFileError: the subclass that says what is wrong with it.
    """
    return ShardedFile(path) if os.fspath(path).endswith(INDEX_SUFFIX) else TensorFile(path)


def tensors(path: str | PathLike[str], *names: str) -> dict[str, np.ndarray]:
    """Arrays of any safetensors file, or of an index of several, by name; all of them where none is named.

    Raises:
        WeightFileError: the subclass that says what is wrong with the file.
    """
    with opened(path) as file:
        return {name: file.read(name) for name in names or file.entries}
