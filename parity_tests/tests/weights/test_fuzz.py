"""The fuzzer of weight files: it finds nothing in the reader, and finds what is planted there."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from attn_np import weights
from attn_np.weights import _check, _errors, _foreign_config, _layer_prefixes, _native, _safetensors, _shards
from parity_tests.commands.app import app
from parity_tests.judge import corrupt, fuzz
from parity_tests.tests.inputs import EXAMPLES, config_of

RUN = CliRunner()


def test_a_few_thousand_spoilt_files() -> None:
    *_, tally = fuzz.run(0, 0, 3000, jobs=1)  # in a process whose memory is limited
    assert [(found.sample, found.what) for found in tally.findings] == []
    assert tally.files == 3000
    assert tally.memory > 0
    # The mutations reach every error, and successes of both kinds.
    reached = {name for _, name in tally.outcomes}
    errors = {*_errors.__all__} - {"WeightFileError", "NoAttentionError"}  # the last is of a config.json
    assert errors | {fuzz.WRITTEN, fuzz.STATED} <= reached


def test_the_valid_files_are_read_as_written(tmp_path: Path) -> None:
    for name, origin in corrupt.origins().items():
        tally, sample = fuzz.Tally(), corrupt.Sample(0, 0, name, (), origin.files)
        options = origin.options if origin.config else None
        with fuzz.watched():
            assert fuzz.examine(sample.write(tmp_path), options, tally, traced=True) is None
        assert {what for _, what in tally.outcomes} == {fuzz.WRITTEN}


def test_a_number_names_one_file() -> None:
    assert corrupt.sample(3, 77) == corrupt.sample(3, 77)
    files = {json.dumps([(n, x.hex()) for n, x in corrupt.sample(3, i).files.items()]) for i in range(200)}
    assert len(files) > 150


HOSTILE = (None, True, -1, 0, 2**40, 10**400, 1e300, -1e300, "x", "", [], [1], {}, {"a": 1})


@pytest.mark.parametrize(("variant", "example"), EXAMPLES)
def test_a_config_of_anything(variant: str, example: str, tmp_path: Path) -> None:
    """Every field of every variant with a hostile value, digests made right: refused at once, or read."""
    config, path = config_of(variant, example), tmp_path / corrupt.WHOLE
    weights.write(path, config, weights.draw(config, 0, "float32"))
    header, data = corrupt.parts(path.read_bytes())
    metadata = dict(dict(header)["__metadata__"])
    stated = {name: (e["dtype"], tuple(e["shape"])) for name, e in map_entries(header).items()}
    tally = fuzz.Tally()
    for field in config.fields():
        for value in HOSTILE:
            fields = metadata | {"config": json.dumps(config.as_dict() | {field: value})}
            fields["header_sha256"] = _native.header_digest(fields, stated)
            raw = json.dumps({"__metadata__": fields} | map_entries(header)).encode()
            raw += b" " * (-len(raw) % 8)
            path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
            with fuzz.watched():
                assert fuzz.examine(path, {}, tally, traced=True) is None, (field, value)


def map_entries(header: corrupt.Members) -> dict[str, dict[str, Any]]:
    return {name: dict(entry) for name, entry in header if name != "__metadata__"}


# Planted in the reader ------------------------------------------------------------------------------------------------


def no_digest_of_tensors(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_native, "digest", lambda x: Anything())


class Anything:
    """Equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def no_digest_of_the_header(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_native, "metadata_digests", lambda file, metadata: json.loads(metadata["sha256"]))


def no_check_of_places(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_safetensors.TensorFile, "_check_offsets", lambda self: None)


def the_last_of_two_names_counts(patch: pytest.MonkeyPatch) -> None:
    real = _safetensors.parse_json

    def parsed(path: str, raw: bytes, what: str) -> dict[str, Any]:
        try:
            return real(path, raw, what)
        except weights.DuplicateKeyError as error:
            try:
                return json.loads(raw)
            except ValueError:
                raise error from None

    for module in (_safetensors, _native, _shards):
        patch.setattr(module, "parse_json", parsed)


def any_booleans(patch: pytest.MonkeyPatch) -> None:
    real = _safetensors.TensorFile.read

    def read(self: _safetensors.TensorFile, name: str) -> np.ndarray:
        entry = self.entries[name]
        if entry.code != "BOOL":
            return real(self, name)
        self._stream.seek(self._start + entry.begin)
        return np.frombuffer(self._stream.read(entry.end - entry.begin), "?").reshape(entry.shape)

    patch.setattr(_safetensors.TensorFile, "read", read)


def any_names(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_safetensors, "check_name", lambda path, name: None)


def infinite_weights(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_check, "require_finite", lambda *args: None)


def half_characters(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_safetensors, "is_text", lambda value: isinstance(value, str))


def words_as_they_stand(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_errors, "sanitized", lambda text, limit=0: text)


def unchecked_shards(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_shards.ShardedFile, "_check_shard_name", lambda self, name: None)
    patch.setattr(_shards.ShardedFile, "_shard_path", lambda self, name: f"{self._folder}/{name}")


def more_memory_than_the_file(patch: pytest.MonkeyPatch) -> None:
    real = _safetensors.parse_json

    def greedy(path: str, raw: bytes, what: str) -> dict[str, Any]:
        np.ones(fuzz.MEMORY // 8 + 1)
        return real(path, raw, what)

    patch.setattr(_safetensors, "parse_json", greedy)


def forever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fuzz, "SECONDS", 2.0**-7)  # so that the test need not wait a second
    real = _safetensors.parse_json

    def slow(path: str, raw: bytes, what: str) -> dict[str, Any]:
        while b"\\" not in raw:
            pass
        return real(path, raw, what)

    patch.setattr(_safetensors, "parse_json", slow)


def a_missing_tensor_is_left_out(patch: pytest.MonkeyPatch) -> None:
    for module in (_layer_prefixes, _foreign_config):
        patch.setattr(module, "require_same_keys", lambda *args: None)


# What the finding says, as a pattern, and a file shortly before the first that shows it: the hunt starts there.
PLANTED: dict[Callable[[pytest.MonkeyPatch], None], tuple[str, int]] = {
    no_digest_of_tensors: ("no digest noticed|of other digests", 0),
    no_digest_of_the_header: ("no digest noticed|of another digest", 0),
    no_check_of_places: ("SafetensorError", 0),
    the_last_of_two_names_counts: ("SafetensorError|other arrays", 0),
    any_booleans: ("neither 0 nor 1", 4700),
    any_names: ("a tensor named", 0),
    infinite_weights: ("NaN or infinite", 100),
    half_characters: ("SafetensorError", 6400),
    words_as_they_stand: ("cannot be printed|characters", 3800),
    unchecked_shards: ("FileNotFoundError|IsADirectoryError", 0),
    more_memory_than_the_file: ("MiB of memory", 0),
    forever: ("more than", 0),
    a_missing_tensor_is_left_out: ("KeyError", 1100),
}


def hunt(first: int, files: int = 12_000) -> fuzz.Found:
    """The first finding from a number on."""
    for number in range(first, first + files, 100):
        tally = fuzz.batch(0, number, number + 100)
        if tally.findings:
            return tally.findings[0]
    pytest.fail(f"nothing found in {files} files")


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_what_is_planted_in_the_reader_is_found(plant: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    corrupt.origins()
    plant(monkeypatch)
    words, first = PLANTED[plant]
    assert re.search(words, hunt(first).what)


def die(*_: object) -> None:
    os._exit(3)


def test_a_process_that_dies_is_one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "work", die)
    *_, tally = fuzz.run(0, 0, 4 * fuzz.BATCH, jobs=1)
    assert [found.what.partition(",")[0] for found in tally.findings] == ["a process died"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps a process to a limit of memory")
def test_a_process_is_kept_to_its_memory() -> None:
    code = "import numpy\nfrom parity_tests.judge import fuzz\nfuzz.warm()\nfuzz.confine()\n"
    for size, ends in ((fuzz.MEMORY // 2, "done"), (fuzz.MEMORY + 2**20, "MemoryError")):
        last = f"x = numpy.ones({size}, numpy.uint8)\nprint('done')"
        result = subprocess.run([sys.executable, "-c", code + last], capture_output=True, text=True, check=False)
        assert ends in result.stdout + result.stderr


# The command ----------------------------------------------------------------------------------------------------------


def test_a_finding_is_kept_and_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corrupt.origins()
    infinite_weights(monkeypatch)
    found = hunt(100)
    path = fuzz.keep(found, tmp_path / "kept")
    assert path is not None
    about = json.loads((path.parent / "finding.json").read_text())
    assert about["found"] == found.what
    assert corrupt.sample(about["seed"], about["number"]) == found.sample
    args = ["fuzz", "--replay", str(path)]
    result = RUN.invoke(app, args)
    assert result.exit_code == 1
    assert "NaN or infinite" in result.output
    monkeypatch.undo()
    result = RUN.invoke(app, args)
    assert result.exit_code == 0, result.output
    assert "NOTHING FOUND" in result.output
    result = RUN.invoke(app, ["fuzz", "--replay", str(tmp_path / "nowhere")])
    assert result.exit_code == 2


def one(tally: fuzz.Tally) -> Iterator[fuzz.Tally]:
    """A run that is done at once."""
    yield tally


def test_the_command_shows_outcomes_and_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        fuzz, "run", lambda seed, first, files, jobs: (fuzz.batch(seed, first, n) for n in [first + files])
    )
    args = ["fuzz", "--files", "300", "--seed", "1", "--keep", str(tmp_path / "kept")]
    result = RUN.invoke(app, args)
    assert result.exit_code == 0, result.output
    for words in ("HeaderSyntaxError", "as written", "300 files of seed 1", "NOTHING FOUND"):
        assert words in result.output
    assert not (tmp_path / "kept").exists()
    monkeypatch.setattr(fuzz, "MEMORY", 0)
    result = RUN.invoke(app, args)
    assert result.exit_code == 1
    assert "--replay" in result.output
    kept = sorted((tmp_path / "kept").iterdir())
    assert [path.name for path in kept] == sorted(f"1-{n}" for n in range(0, 300, fuzz.TRACED))
    # A process that dies, and one that reads nothing, are no success.
    monkeypatch.setattr(
        fuzz, "run", lambda *args: (fuzz.Tally(findings=[each]) for each in [fuzz.Found(None, "a process died")])
    )
    result = RUN.invoke(app, args)
    assert result.exit_code == 1
    assert "a process died" in result.output
