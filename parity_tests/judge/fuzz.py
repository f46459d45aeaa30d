"""The reader of weight files against spoilt ones: each is refused with a `WeightFileError`, or gives what it says.

What may come out is one of three:

- refused: a `WeightFileError` in the house's words;
- as written: the config and the arrays of a valid file that was spoilt, bit for bit. Where the header's digest is that
  file's, no other success is allowed;
- as stated: a valid file that says something else, such as one whose digests were made right again. The arrays are
  those that the package `safetensors` reads, and config and digests are those that the file states.

All else is a finding: another exception, other arrays, more than a second, more than 32 MiB.
"""

import contextlib
import functools
import gc
import hashlib
import json
import os
import re
import signal
import sys
import tempfile
import time
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from attn_np import contract, weights
from attn_np.contract import Config
from attn_np.weights import LayerWeights, layouts
from attn_np.weights._native import header_digest
from attn_np.weights._paths import INDEX_SUFFIX
from attn_np.weights._safetensors import CODES
from attn_np.weights.layouts import _base
from parity_tests.judge.corrupt import FOREIGN, Sample, metadata_of, origins, sample
from parity_tests.judge.workers import workers

SECONDS = 1.0
MEMORY = 32 * 2**20
# Tracing makes Python several times as slow, so one file in so many is traced; the limit of a process holds for all.
TRACED = 16
BATCH = 500
WORDS = re.compile(r".+: expected .+, got .+; .+", re.DOTALL)
LONGEST = 4000
WRITTEN, STATED = "as written", "as stated"
WAYS = ("arrays", "layer")
SHARED_MEMORY = "/dev/shm"
T = TypeVar("T")

# What a file says of each tensor: the code of its dtype, its shape and its bytes.
Plain = dict[str, tuple[str, tuple[int, ...], bytes]]


class Finding(Exception):
    """What the reader must not do."""


class Overtime(BaseException):
    """A file took longer than it may; no `except Exception` of the reader holds it back."""


@dataclass(frozen=True)
class Found:
    """A finding, and the file that shows it."""

    sample: Sample | None
    what: str


@dataclass
class Tally:
    """What came out of some files.

    Attributes:
        files: how many.
        outcomes: how often each (way of reading, outcome).
        findings: what must not be.
        seconds: of a processor, spent on all of them.
        slowest: most seconds of a processor for one file.
        memory: most bytes for one file, over those that were traced.
    """

    files: int = 0
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    findings: list[Found] = field(default_factory=list)
    seconds: float = 0.0
    slowest: float = 0.0
    memory: int = 0

    def add(self, other: "Tally") -> None:
        self.files += other.files
        self.seconds += other.seconds
        self.outcomes += other.outcomes
        self.findings += other.findings
        self.slowest, self.memory = max(self.slowest, other.slowest), max(self.memory, other.memory)


# The oracle -----------------------------------------------------------------------------------------------------------


def plain(path: Path) -> tuple[Plain, dict[str, Any]]:
    """The tensors and the metadata of a file that was accepted, by the package `safetensors` and plain JSON."""
    import safetensors

    if not path.name.endswith(INDEX_SUFFIX):
        content = path.read_bytes()
        held = safetensors.deserialize(content)
        return {name: (x["dtype"], tuple(x["shape"]), bytes(x["data"])) for name, x in held}, metadata_of(content)
    shard_of = json.loads(path.read_bytes())["weight_map"]
    unsafe = [name for name in shard_of.values() if set(name) & set("/\\\0") or name in ("", ".", "..")]
    require(not unsafe, f"shards named {unsafe!r}")
    shards = {name: plain(path.parent / name) for name in set(shard_of.values())}
    said = {key: shards[name][0][key] for key, name in shard_of.items()}
    require(len(said) == sum(len(held) for held, _ in shards.values()), "a tensor that the index does not map")
    return said, next((metadata for _, metadata in shards.values()), {})


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Finding(what)


def bits(values: Mapping[str, np.ndarray]) -> Plain:
    return {name: (CODES[x.dtype.name], x.shape, x.tobytes()) for name, x in values.items()}


@dataclass(frozen=True)
class Valid:
    """A file before it is spoilt, as bytes that can be compared."""

    config: Config | None
    arrays: Plain
    values: Plain
    digest: str | None


@functools.cache
def valid() -> list[Valid]:
    return [Valid(x.config, bits(x.arrays), bits(x.values), x.digest) for x in origins().values()]


def judge_arrays(said: Plain, found: Mapping[str, np.ndarray]) -> str:
    """Whether arrays that were read are those of the file."""
    held = bits(found)
    require(held == said, "other arrays than the package safetensors reads")
    for name, (code, _, data) in said.items():
        path = name.replace("\\", "/").split("/")
        require(name.isprintable() and ".." not in path and path[0] != "", f"a tensor named {name!r}")
        require(code != "BOOL" or set(data) <= {0, 1}, "a boolean that is neither 0 nor 1")
    return WRITTEN if any(held == origin.arrays for origin in valid()) else STATED


def judge_layer(said: Plain, metadata: Mapping[str, Any], found: LayerWeights) -> str:
    """Whether a layer that was read is the one that the file states."""
    require({name: x.shape for name, x in found.values.items()} == found.config.shapes(), "other parameters")
    require(all(np.isfinite(x.astype(np.float64)).all() for x in found.values.values()), "NaN or infinite weights")
    digest = metadata.get("header_sha256")
    if digest is None:
        judge_foreign(found, said)
    else:
        judge_ours(found, said, metadata)
    held, same = bits(found.values), False
    for origin in valid():
        equal = found.config == origin.config and held == origin.values
        require(equal or digest is None or digest != origin.digest, "a change that no digest noticed")
        same = same or equal
    return WRITTEN if same else STATED


def judge_ours(found: LayerWeights, said: Plain, metadata: Mapping[str, str]) -> None:
    """Config, arrays and digests are those that the file states."""
    stated = contract.config(metadata["variant"], **json.loads(metadata["config"]))
    require(found.config == stated, f"another config than the file states: {found.config}")
    require(bits(found.values) == said, "other arrays than the file's")
    entries = {name: (code, shape) for name, (code, shape, _) in said.items()}
    require(metadata["header_sha256"] == header_digest(metadata, entries), "a header of another digest")
    digests = {name: hashlib.sha256(data).hexdigest() for name, (_, _, data) in said.items()}
    require(json.loads(metadata["sha256"]) == digests, "tensors of other digests")


def judge_foreign(found: LayerWeights, said: Plain) -> None:
    """Back in the foreign names, a layer's parameters are the file's bytes."""
    layout = layouts.get(FOREIGN["layout"])
    theirs: dict[str, np.ndarray] = {}
    for applied in _base.applied_rules(layout.tables[found.config.variant], found.config):
        theirs |= applied.to_layout(found.values)
    held = bits(theirs)
    starts = [start.format(layer=FOREIGN["layer"]) for start in layout.prefixes]
    fits = any(all(said.get(start + key) == x for key, x in held.items()) for start in starts)
    require(fits, "other arrays than the file's, back in its names")


def judge_words(error: weights.WeightFileError) -> None:
    text = str(error)
    require(WORDS.fullmatch(text) is not None, f"a refusal in other words: {text[:200]!r}")
    require(text.isprintable(), "a refusal with characters that cannot be printed")
    require(len(text) <= LONGEST, f"a refusal of {len(text)} characters")


# One file -------------------------------------------------------------------------------------------------------------


def outcomes(path: Path, options: Mapping[str, Any] | None) -> dict[str, str]:
    """What comes out of a file as arrays, and as a layer where `options` says how.

    Raises:
        Exception: a finding.
    """
    said = functools.cache(lambda: plain(path))
    found = {"arrays": outcome(lambda: weights.tensors(path), lambda x: judge_arrays(said()[0], x))}
    if options is not None:
        found["layer"] = outcome(lambda: weights.read(path, **options), lambda x: judge_layer(*said(), x))
    return found


def outcome(read: Callable[[], T], judge: Callable[[T], str]) -> str:
    try:
        found = read()
    except weights.WeightFileError as error:
        judge_words(error)
        return type(error).__name__
    return judge(found)


def examine(path: Path, options: Mapping[str, Any] | None, tally: Tally, traced: bool) -> str | None:
    """Read a file in every way, within its time and memory; what must not be comes back as text."""
    if traced:
        tracemalloc.start()
    start = time.process_time()
    try:
        with timer():
            tally.outcomes.update(outcomes(path, options).items())
        what = None
    except Overtime:
        what = f"more than {SECONDS:g} s"
    except Exception as error:  # whatever it is, it is what is looked for
        what = f"{type(error).__name__}: {str(error)[:200]}"
    tally.slowest = max(tally.slowest, time.process_time() - start)
    if traced:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        tally.memory = max(tally.memory, peak)
        what = what or (f"{peak / 2**20:.0f} MiB of memory" if peak > MEMORY else None)
    tally.files += 1
    return what


@contextlib.contextmanager
def timer() -> Iterator[None]:
    """Stop what takes too long: by the processor's time, so that a busy machine stops nothing.

    Neither does the garbage of whatever else the process holds: nothing is collected meanwhile.
    """
    collecting = gc.isenabled()
    gc.disable()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if collecting:
            gc.enable()


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """A file that takes too long raises `Overtime`, and a warning is an error."""

    def stop(*_: object) -> None:
        raise Overtime

    before = signal.signal(signal.SIGPROF, stop)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        signal.signal(signal.SIGPROF, before)


# Many files -----------------------------------------------------------------------------------------------------------


def batch(seed: int, first: int, last: int) -> Tally:
    """The files of a seed from `first` up to `last`."""
    tally, start = Tally(), time.process_time()
    # Where there is a file system in memory, files need not reach the disk.
    memory = SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder, watched():
        for number in range(first, last):
            spoilt = sample(seed, number)
            path = spoilt.write(Path(folder))
            options = origins()[spoilt.origin].options
            what = examine(path, options, tally, traced=number % TRACED == 0)
            if what is not None:
                tally.findings.append(Found(spoilt, what))
            for name in spoilt.files:
                os.unlink(os.path.join(folder, name))
    tally.seconds = time.process_time() - start
    return tally


def warm() -> None:
    """Load all that a process needs, so that the limit of its memory is one for files."""
    batch(0, 0, 100)


def confine() -> None:
    """Limit a process to the memory it has, and what one file may take.

    Only Linux keeps such a limit; elsewhere the traced files tell.
    """
    if sys.platform == "linux":
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, most))


def work(seed: int, first: int, last: int) -> Tally:
    """A batch in a process of its own, which grows a little with each: tracing leaves something behind."""
    confine()
    return batch(seed, first, last)


def run(seed: int, first: int, files: int, jobs: int) -> Generator[Tally]:
    """Spoil and read files in processes; after each piece yield the tally so far."""
    tally, last = Tally(), first + files
    with workers(jobs, warm) as pool:
        pieces = [(n, min(n + BATCH, last)) for n in range(first, last, BATCH)]
        futures = [pool.submit(work, seed, *piece) for piece in pieces]
        for future in as_completed(futures):
            try:
                tally.add(future.result())
            except BrokenProcessPool:
                todo = "look for the file with --first, --files and --jobs 1"
                tally.findings.append(Found(None, f"a process died, after {tally.files} files that were read; {todo}"))
                yield tally
                return
            yield tally


def keep(found: Found, folder: Path) -> Path | None:
    """Keep the files of a finding, and what is known of it; the file to read comes back."""
    if found.sample is None:
        return None
    spoilt = found.sample
    place = folder / f"{spoilt.seed}-{spoilt.number}"
    place.mkdir(parents=True, exist_ok=True)
    about = {"seed": spoilt.seed, "number": spoilt.number, "origin": spoilt.origin, "mutations": spoilt.mutations}
    (place / "finding.json").write_text(json.dumps(about | {"found": found.what}, indent=2) + "\n")
    return spoilt.write(place)


def replay(path: Path) -> tuple[Tally, list[str]]:
    """Read one file in every way that files are read here."""
    tally, found = Tally(), []
    for options in ({}, FOREIGN):
        with watched():
            what = examine(path, options, tally, traced=True)
        if what is not None:
            found.append(what)
    return tally, found
