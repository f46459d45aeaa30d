"""Weight files spoilt at random, by mutations that know the format: bytes, JSON, places, types, metadata, shards.

File n of a seed is always the same file.
"""

import contextlib
import copy
import functools
import hashlib
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from attn_np import contract, weights
from attn_np.contract import Config
from attn_np.weights._native import header_digest
from attn_np.weights._paths import INDEX_SUFFIX
from attn_np.weights._safetensors import BITS, CODES, write_tensors

WHOLE, INDEX = "model.safetensors", f"model{INDEX_SUFFIX}"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")

Files = dict[str, bytes]
Arrays = Mapping[str, np.ndarray]


# Origins --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Origin:
    """A valid file to start from.

    Attributes:
        files: its files by name; more than one where it is an index of shards.
        main: the one to read.
        arrays: its tensors by name.
        config: what it holds a layer of; None where it holds arrays alone.
        values: the parameters of that layer.
        options: what `read` needs to know.
        digest: the digest of its header, where it has one.
    """

    files: Files
    main: str
    arrays: Arrays
    config: Config | None = None
    values: Arrays = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    digest: str | None = None


SMALL = {
    ("mha", "float32"): contract.config("mha", d_model=4, num_heads=2),
    ("gru", "float64"): contract.config("gru", input_dim=2, hidden_dim=3, num_layers=2),
    ("self_attention", "bfloat16"): contract.config("self_attention", d_model=3, head_dim=2),
    ("additive", "float16"): contract.config("additive", query_dim=3, key_dim=2, hidden_dim=5),
}
FOREIGN = {"layout": "bert", "layer": 0, "num_heads": 2}


@functools.cache
def origins() -> dict[str, Origin]:
    """The valid files, small ones so that many can be read."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / WHOLE
        for (name, dtype), config in SMALL.items():
            values = weights.draw(config, 0, dtype)
            weights.write(path, config, values)
            files = {WHOLE: path.read_bytes()}
            found[name] = Origin(files, WHOLE, values, config, values, digest=digest_of(files[WHOLE]))
        mha = found["mha"]
        shards = sharded(mha.arrays, metadata_of(mha.files[WHOLE]))
        found["mha shards"] = replace(mha, files=shards, main=INDEX)
        weights.write(path, SMALL["mha", "float32"], mha.values, layout="bert", layer=0)
        files, arrays = {WHOLE: path.read_bytes()}, weights.tensors(path)
        found["bert"] = replace(mha, files=files, arrays=arrays, options=FOREIGN, digest=None)
        found["bert shards"] = replace(found["bert"], files=sharded(arrays, {"format": "pt"}), main=INDEX)
        arrays = {code: np.array([[0, 1, 0], [1, 1, 0]]).astype(np.dtype(dtype)) for dtype, code in CODES.items()}
        arrays |= {"empty": np.zeros((0, 2)), "scalar": np.array(1.5)}
        found["arrays"] = Origin({WHOLE: written(arrays, {})}, WHOLE, arrays)
    return found


def written(arrays: Arrays, metadata: Mapping[str, str]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / WHOLE
        write_tensors(path, arrays, metadata)
        return path.read_bytes()


def sharded(arrays: Arrays, metadata: Mapping[str, str]) -> Files:
    """Two shards, the tensors one here and one there, and their index."""
    shard_of = {key: SHARDS[i % 2] for i, key in enumerate(arrays)}
    files = {}
    for shard in SHARDS:
        files[shard] = written({key: x for key, x in arrays.items() if shard_of[key] == shard}, metadata)
    total = sum(x.nbytes for x in arrays.values())
    return files | {INDEX: json.dumps({"metadata": {"total_size": total}, "weight_map": shard_of}).encode()}


# JSON that may be wrong -----------------------------------------------------------------------------------------------


class Members(list[tuple[str, Any]]):
    """A JSON object as pairs: it can hold a name twice."""


class Raw(str):
    """JSON text that is written as it stands."""


# By whether every character stays within ASCII.
ENCODE = {tight: json.JSONEncoder(ensure_ascii=tight).encode for tight in (True, False)}


def dumped(value: Any, tight: bool = True) -> str:
    """JSON text, with spaces and all of Unicode unless `tight`."""
    if isinstance(value, Raw):
        return value
    comma, colon = (",", ":") if tight else (" ,\n ", " : ")
    if isinstance(value, Members):
        encode = ENCODE[tight]
        return f"{{{comma.join([f'{encode(name)}{colon}{dumped(x, tight)}' for name, x in value])}}}"
    if isinstance(value, list):
        return f"[{comma.join([dumped(x, tight) for x in value])}]"
    return ENCODE[tight](value)


def members(text: bytes | str) -> Members:
    """A JSON object.

    Raises:
        ValueError, RecursionError: it is none.
    """
    found = json.loads(text, object_pairs_hook=Members)
    if not isinstance(found, Members):
        raise ValueError("no object")
    return found


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def slots(value: Any) -> Iterator[tuple[list[Any], int]]:
    """Every place of a JSON value, as a container and an index."""
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield value, i
            yield from slots(item[1] if isinstance(value, Members) else item)


def put(holder: list[Any], i: int, value: Any) -> None:
    holder[i] = (holder[i][0], value) if isinstance(holder, Members) else value


def got(holder: list[Any], i: int) -> Any:
    return holder[i][1] if isinstance(holder, Members) else holder[i]


DEEP = (Raw("[" * 3000 + "]" * 3000), Raw('{"a":' * 1100 + "1" + "}" * 1100), Raw("[" * 100_000))
NUMBERS = (
    *(0, 1, 2, 3, 7, -1, 255, 2**15, 2**31 - 1, 2**31, 2**32, 2**40, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64),
    *(10**30, 10**400, 0.5, -0.0, 1.5, 1e300, float("inf"), float("nan")),
    *map(Raw, ("9" * 5000, "1e999", "-0", "1.0", "1E2", "01", "0x10", "1_000", "-", "+1")),
)
NAMES = (
    *("", "a", "w_q", "w_q ", "W_Q", "__metadata__", "dtype", "shape", "data_offsets", "header_sha256", "num_heads"),
    *("../a", "/a", "..", ".", "a/../b", "a\\b", "C:a", "\0", "\n", "\x1b[2J", "\u202e", "\ud800", "é", "\U0001f600"),
    *("a" * 512, "a" * 513, "a" * 70_000, "0" * 64, "{}", "[]", "null", "mha", "bert", "attn-parity/2"),
    *("encoder.layer.0.", "bert.encoder.layer.0.attention.self.query.weight", *SHARDS, INDEX, *BITS),
)
CONSTANTS = (None, True, False)
NO_JSON = tuple(map(Raw, ("tru", "'a'", '"a', '"\\ud800"', '"\\x"', '"a\nb"', "{]", "", "//", ",")))
HOSTILE = (NUMBERS, NAMES, CONSTANTS, NO_JSON, ([], Members(), [[]], [0], [0, 0], [2**62] * 3, [1] * 70), DEEP)


def hostile(rng: random.Random) -> Any:
    """A value that programs tend to take badly."""
    return copy.deepcopy(rng.choice(rng.choice(HOSTILE)))


def nudged(rng: random.Random, value: Any) -> Any:
    """A value near another one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, value + 8, value - 8, value * 2, -value, float(value), str(value)))
    if isinstance(value, str) and value:
        i = rng.randrange(len(value))
        return value[:i] + rng.choice(("", chr(rng.randrange(32, 127)), value[i] * 2)) + value[i + 1 :]
    return hostile(rng)


def edited(rng: random.Random, tree: Members) -> None:
    """One edit somewhere in a JSON value."""
    places = list(slots(tree))
    if not places:
        tree.append((rng.choice(NAMES), hostile(rng)))
        return
    holder, i = rng.choice(places)
    kind = rng.randrange(7)
    if kind == 0:
        put(holder, i, hostile(rng))
    elif kind == 1:
        put(holder, i, nudged(rng, got(holder, i)))
    elif kind == 2:
        del holder[i]
    elif kind == 3:
        holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(holder[i]))
        put(holder, i, rng.choice((got(holder, i), hostile(rng))))
    elif kind == 4 and isinstance(holder, Members):
        names = (nudged(rng, holder[i][0]), rng.choice(NAMES), rng.choice(holder)[0])
        holder[i] = (rng.choice(names), holder[i][1])
    elif kind == 5:
        other, j = rng.choice(places)
        mine, theirs = copy.deepcopy(got(holder, i)), copy.deepcopy(got(other, j))
        put(other, j, mine)
        put(holder, i, theirs)
    else:
        rng.shuffle(holder)


# Mutations ------------------------------------------------------------------------------------------------------------


def parts(content: bytes) -> tuple[Members, bytes]:
    """The header and the data.

    Raises:
        ValueError, RecursionError: the file is spoilt too much already.
    """
    length = int.from_bytes(content[:8], "little")
    return members(content[8 : 8 + length]), content[8 + length :]


def metadata_of(content: bytes) -> dict[str, Any]:
    """What a valid file says about itself."""
    return dict(dict(parts(content)[0]).get("__metadata__", {}))


def digest_of(content: bytes) -> str:
    return metadata_of(content)["header_sha256"]


def joined(rng: random.Random, header: Members, data: bytes) -> bytes:
    raw = encoded(dumped(header, tight=rng.random() < 0.9))
    if rng.random() < 0.9:
        raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw + data


def flip(rng: random.Random, content: bytes) -> bytes:
    """A few bytes, or bits of them, changed."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 8)) if content else 0):
        i = rng.randrange(len(changed))
        changed[i] = rng.choice((changed[i] ^ (1 << rng.randrange(8)), rng.randrange(256), 0, 255))
    return bytes(changed)


def cut(rng: random.Random, content: bytes) -> bytes:
    """The end cut off."""
    return content[: rng.choice((rng.randrange(len(content) + 1), max(len(content) - rng.randrange(9), 0)))]


def extend(rng: random.Random, content: bytes) -> bytes:
    """Something behind the end."""
    return content + rng.choice((bytes(rng.randrange(1, 9)), b"PK\x05\x06" + bytes(18), content, rng.randbytes(40)))


def chunk(rng: random.Random, content: bytes) -> bytes:
    """A piece left out, repeated or put in."""
    i, n = rng.randrange(len(content) + 1), rng.choice((1, 2, 8, 64))
    return content[:i] + rng.choice((b"", content[i : i + n] * 2, rng.randbytes(n))) + content[i + n :]


def length(rng: random.Random, content: bytes) -> bytes:
    """Another length of the header."""
    known = int.from_bytes(content[:8], "little")
    near = known + rng.choice((-8, -1, 1, 8, 16))
    stated = rng.choice((near, 0, 1, 2, len(content), len(content) - 8, 2**24, 2**24 + 1, 2**31, 2**63, 2**64 - 1))
    return (stated % 2**64).to_bytes(8, "little") + content[8:]


def magic(rng: random.Random, content: bytes) -> bytes:
    """The beginning of another format."""
    starts = (b"PK\x03\x04", b"\x93NUMPY", b"\x80\x02", b"\x89HDF", b"{", b"version https://git-lfs", b"\xef\xbb\xbf")
    start = rng.choice(starts)
    return start + content[rng.choice((0, len(start))) :]


def splice(rng: random.Random, content: bytes) -> bytes:
    """The beginning of one file and the end of another."""
    other = rng.choice(list(rng.choice(list(origins().values())).files.values()))
    if rng.random() < 0.5:
        ends = (8 + int.from_bytes(x[:8], "little") % 2**20 for x in (content, other))
        i, j = ends
    else:
        i, j = rng.randrange(len(content) + 1), rng.randrange(len(other))
    return content[:i] + other[j:]


def header(rng: random.Random, content: bytes) -> bytes:
    """One edit anywhere in the header."""
    tree, data = parts(content)
    edited(rng, tree)
    return joined(rng, tree, data)


def layout(rng: random.Random, content: bytes) -> bytes:
    """Another name, place, shape or type of a tensor."""
    tree, data = parts(content)
    found = [i for i, (name, value) in enumerate(tree) if name != "__metadata__" and isinstance(value, Members)]
    entry = tree[rng.choice(found)][1]
    if rng.random() < 0.1:
        empty = Members([("dtype", "F32"), ("shape", [0]), ("data_offsets", [len(data)] * 2)])
        tree.append((rng.choice(NAMES), empty))
        return joined(rng, tree, data)
    if rng.random() < 0.2:
        tree[:] = [(rng.choice(NAMES) if value is entry else name, value) for name, value in tree]
    known = dict(entry)
    kind = rng.choice(("dtype", "shape", "data_offsets"))
    value = known.get(kind)
    if kind == "dtype" or not isinstance(value, list):
        value = rng.choice((*BITS, ">f4", "f32", "F128"))
    elif kind == "shape":
        rng.shuffle(value)
        if rng.random() < 0.7:
            value = rng.choice((value[::-1], [*value, 1], value[1:], [*value, 0], [0, 2**62, 2**62], value * 2))
    else:
        value = [x + rng.choice((0, 0, 1, -1, 4, 8, -4, 2**32, len(data))) for x in value if isinstance(x, int)]
        value = rng.choice((value, value[::-1], value * 2))
    for i, (name, _) in enumerate(entry):
        if name == kind:
            entry[i] = (name, value)
    return joined(rng, tree, data)


def metadata(rng: random.Random, content: bytes) -> bytes:
    """One edit in a metadata field, inside its JSON where it holds some."""
    tree, data = parts(content)
    fields = dict(tree).get("__metadata__")
    if not isinstance(fields, Members) or not fields:
        tree.append(("__metadata__", rng.choice((hostile(rng), Members([("format", "attn-parity/1")])))))
        return joined(rng, tree, data)
    i = rng.randrange(len(fields))
    text = fields[i][1]
    if isinstance(text, str):
        try:
            inner = members(text)
            edited(rng, inner)
            text = dumped(inner)
        except (ValueError, RecursionError):
            text = rng.choice((nudged(rng, text), rng.choice(NAMES)))
    put(fields, i, text)
    return joined(rng, tree, data)


def numbers(rng: random.Random, content: bytes) -> bytes:
    """Other bytes in the data: NaN, infinity, or anything."""
    tree, data = parts(content)
    i = rng.randrange(len(data) // 8 + 1) * 8
    pieces = (b"\xff" * 8, b"\0\0\xf0\x7f" * 2, b"\0\0\x80\xff" * 2, b"\x80\x7f" * 4, b"\2" * 8, rng.randbytes(8))
    return joined(rng, tree, (data[:i] + rng.choice(pieces) + data[i + 8 :])[: len(data)])


def settings(rng: random.Random, content: bytes) -> bytes:
    """Another value of a config field: a number, or one near the old."""
    tree, data = parts(content)
    fields = dict(tree)["__metadata__"]
    i = [name for name, _ in fields].index("config")
    inner = members(fields[i][1])
    j = rng.randrange(len(inner))
    put(inner, j, rng.choice((rng.choice(NUMBERS), nudged(rng, got(inner, j)), rng.choice(CONSTANTS))))
    put(fields, i, dumped(inner))
    return joined(rng, tree, data)


BYTES: tuple[Callable[[random.Random, bytes], bytes], ...] = (flip, cut, extend, chunk, length, magic, splice)
FORMAT: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    header,
    header,
    layout,
    metadata,
    metadata,
    numbers,
    settings,
)


def index(rng: random.Random, files: Files) -> None:
    """One edit of an index, or of which shard is which."""
    kind = rng.randrange(9)
    if kind < 5:
        tree = members(files[INDEX])
        if kind == 0:
            shard_of = dict(tree)["weight_map"]
            put(shard_of, rng.randrange(len(shard_of)), rng.choice(NAMES))
        else:
            edited(rng, tree)
        files[INDEX] = encoded(dumped(tree, tight=rng.random() < 0.9))
    elif kind == 5:
        files[INDEX] = rng.choice((flip, cut, extend, chunk))(rng, files[INDEX])
    elif kind == 6 and SHARDS[0] in files:
        del files[SHARDS[0]]
    else:
        old = rng.choice((None, INDEX, *SHARDS))
        files[rng.choice(SHARDS)] = files.get(old, b"") if old else rng.randbytes(64)


def resealed(files: Files) -> None:
    """The digests of our own files made right, over all shards: what a forger would do.

    Raises:
        ValueError, TypeError, RecursionError: they are spoilt too much to have digests.
    """
    found = {name: parts(content) for name, content in files.items() if name != INDEX}
    entries, digests = {}, {}
    for tree, data in found.values():
        for name, entry in tree:
            if name != "__metadata__":
                fields = dict(entry)
                begin, end = fields["data_offsets"]
                entries[name] = (fields["dtype"], tuple(fields["shape"]))
                digests[name] = hashlib.sha256(data[begin:end]).hexdigest()
    for name, (tree, data) in found.items():
        fields = dict(dict(tree)["__metadata__"])
        fields["sha256"] = json.dumps(digests)
        fields["header_sha256"] = header_digest(fields, entries)
        tree[:] = [(key, Members(fields.items()) if key == "__metadata__" else value) for key, value in tree]
        raw = encoded(dumped(tree))
        raw += b" " * (-len(raw) % 8)
        files[name] = len(raw).to_bytes(8, "little") + raw + data


@dataclass(frozen=True)
class Sample:
    """A spoilt file: which one, what was done to it, and its bytes."""

    seed: int
    number: int
    origin: str
    mutations: tuple[str, ...]
    files: Files

    def write(self, folder: Path) -> Path:
        """Write its files; the one to read comes back."""
        for name, content in self.files.items():
            with open(os.path.join(folder, name), "wb") as stream:
                stream.write(content)
        return folder / origins()[self.origin].main


SPOILT = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, AttributeError)


def sample(seed: int, number: int) -> Sample:
    """File `number` of a seed, the same one at every call."""
    rng = random.Random(f"{seed} {number}")
    name = rng.choice(list(origins()))
    origin = origins()[name]
    files, done = dict(origin.files), []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if origin.main == INDEX and rng.random() < 0.5:
            mutation, target = index, ""
        else:
            mutation = rng.choice(rng.choice((BYTES, FORMAT)))
            target = rng.choice([file for file in files if file != INDEX] or [INDEX])
        # A file that an earlier mutation spoilt for this one stays as it is.
        with contextlib.suppress(*SPOILT):
            if mutation is index:
                index(rng, files)
            else:
                files[target] = mutation(rng, files[target])  # type: ignore[operator]
            done.append(mutation.__name__)
    if origin.digest and rng.random() < 0.5:
        with contextlib.suppress(*SPOILT):
            resealed(files)
            done.append("resealed")
    return Sample(seed, number, name, tuple(done), files)
