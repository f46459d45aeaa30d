"""Paths of weight files: what is opened, what is replaced and how, and headers that are slow to refuse."""

import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from attn_np import contract, weights
from parity_tests.tests.inputs import TREES
from parity_tests.tests.weights.test_weights import WORDS, assemble, bits, tensor

CONFIG = contract.config("mha", d_model=6, num_heads=2)
VALUES = weights.draw(CONFIG, 2, "float32")

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes and special files are POSIX's")


def layers() -> Iterator[tuple[Any, Any]]:
    """Each tree's package, and a layer of it."""
    for tree in TREES.values():
        yield tree.package, tree.build(CONFIG, seed=3, dtype="float32")


def refused(call: Callable[[], object], error: type[Exception], words: str) -> None:
    """A call raises exactly this error, in the house's words."""
    with pytest.raises(error, match=words) as caught:
        call()
    assert caught.type is error
    assert WORDS.fullmatch(str(caught.value))
    assert not str(caught.value).startswith("[Errno")


def refused_by_all(path: Any, error: type[Exception], words: str, *, save: bool) -> None:
    """The three trees refuse to save to a path or to load from it, in the same words."""
    for package, layer in layers():
        call = (lambda p=package, x=layer: p.save(x, path)) if save else (lambda p=package: p.load(path))
        refused(call, error, words)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


# Permissions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o755])
def test_a_replaced_file_keeps_its_mode(mode: int, tmp_path: Path) -> None:
    file = tmp_path / "layer.safetensors"
    for package, layer in layers():
        file.write_bytes(b"old")
        file.chmod(mode)
        package.save(layer, file)
        assert stat.S_IMODE(file.stat().st_mode) == mode
        assert package.load(file).config == CONFIG


def test_a_private_file_is_private_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, modes, fsync = tmp_path / "layer.safetensors", [], os.fsync

    def watch(handle: int) -> None:
        modes.append(os.fstat(handle).st_mode)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", watch)
    opened, real = [], os.open

    def watch_open(path: str, flags: int, mode: int = 0o777) -> int:
        handle = real(path, flags, mode)
        opened.append(stat.S_IMODE(os.fstat(handle).st_mode))
        return handle

    file.write_bytes(b"")
    file.chmod(0o600)
    monkeypatch.setattr(os, "open", watch_open)
    weights.write(file, CONFIG, VALUES)
    assert opened[0] == 0o600 and stat.S_IMODE(modes[0]) == 0o600


def test_a_new_file_has_the_mode_of_the_umask(tmp_path: Path) -> None:
    for mask in (0o022, 0o077, 0o002):
        before = os.umask(mask)
        try:
            weights.write(tmp_path / f"{mask:o}", CONFIG, VALUES)
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / f"{mask:o}").stat().st_mode) == 0o666 & ~mask


def test_a_read_only_file_stays(tmp_path: Path) -> None:
    file = tmp_path / "layer.safetensors"
    for mode in (0o444, 0o400):
        file.unlink(missing_ok=True)
        file.write_bytes(b"old")
        file.chmod(mode)
        refused_by_all(file, PermissionError, "expected a file that can be written, got a read-only one", save=True)
        assert file.read_bytes() == b"old" and stat.S_IMODE(file.stat().st_mode) == mode
        assert names(tmp_path) == [file.name]


# What is no regular file ----------------------------------------------------------------------------------------------


@contextmanager
def special(kind: str, folder: Path) -> Iterator[str]:
    """The path of a file of a kind."""
    path, ends = str(folder / "special.safetensors"), ()
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a socket":
        before = os.getcwd()
        os.chdir(folder)  # a socket's path is short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.basename(path))
        os.chdir(before)
    else:  # a terminal of our own: a writer that replaces it does no harm to the system, as it would to /dev/null
        ends = os.openpty()
        path = os.ttyname(ends[1])
    yield path
    for end in ends:
        os.close(end)


@pytest.mark.parametrize("kind", ["a FIFO", "a socket", "a device"])
def test_only_regular_files_are_read_and_replaced(kind: str, tmp_path: Path) -> None:
    with special(kind, tmp_path) as path:
        before = os.stat(path)
        refused_by_all(path, OSError, f"expected a regular file, got {kind}", save=True)
        link = tmp_path / "link.safetensors"
        link.symlink_to(path)
        refused_by_all(link, OSError, f"expected a regular file, got {kind}", save=True)
        assert (os.stat(path).st_ino, os.stat(path).st_mode) == (before.st_ino, before.st_mode)
        assert not [name for name in names(tmp_path) if name.endswith(".tmp")]


def returns(call: Callable[[], object], seconds: float = 20.0) -> None:
    """Run a call that must come back by itself; fail, instead of waiting, where it blocks."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "the call blocks"


@pytest.mark.parametrize("kind", ["a FIFO", "a socket", "a device"])
def test_loading_never_waits(kind: str, tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def load(path: str) -> None:
        try:
            refused_by_all(path, OSError, f"expected a weight file, got {kind}", save=False)
        except BaseException as error:
            errors.append(error)

    with special(kind, tmp_path) as path:
        returns(lambda: load(path))
    assert not errors, errors


def test_a_fifo_beside_a_model_is_no_config(tmp_path: Path) -> None:
    weights.write(tmp_path / "model.safetensors", CONFIG, VALUES, layout="bert", layer=0)
    os.mkfifo(tmp_path / "config.json")
    errors: list[str] = []

    def load() -> None:
        for call in (
            lambda: weights.read(tmp_path / "model.safetensors", layout="bert", layer=0, num_heads=2),
            lambda: weights.read_pretrained(tmp_path, 0),
        ):
            try:
                call()
            except OSError as error:
                errors.append(str(error))

    returns(load)
    assert len(errors) == 2 and "expected a JSON file, got a FIFO" in errors[0]


# Links ----------------------------------------------------------------------------------------------------------------


def test_links_are_followed_and_stay(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "layer.safetensors", tmp_path / "link.safetensors"
    second = tmp_path / "second.safetensors"
    link.symlink_to(target)
    second.symlink_to(link)
    for package, layer in layers():
        for mode in (None, 0o600):  # a new file, and one that is replaced
            target.unlink(missing_ok=True)
            if mode is not None:
                target.write_bytes(b"old")
                target.chmod(mode)
            package.save(layer, second)
            assert second.is_symlink() and link.is_symlink() and not target.is_symlink()
            assert package.load(target).config == CONFIG
            assert mode is None or stat.S_IMODE(target.stat().st_mode) == mode
    assert names(tmp_path / "there") == [target.name]


def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    loop, lost = tmp_path / "loop.safetensors", tmp_path / "lost.safetensors"
    loop.symlink_to(loop)
    lost.symlink_to(tmp_path / "nowhere" / "layer.safetensors")
    refused_by_all(loop, OSError, "got 'Too many levels of symbolic links'; check the path", save=True)
    refused_by_all(loop, OSError, "got 'Too many levels of symbolic links'; check the path", save=False)
    refused_by_all(lost, FileNotFoundError, "expected a folder that exists, got no folder", save=True)
    refused_by_all(lost, FileNotFoundError, "expected a weight file, got no file of this name", save=False)
    assert loop.is_symlink() and lost.is_symlink() and names(tmp_path) == [loop.name, lost.name]


# Names ----------------------------------------------------------------------------------------------------------------


def test_a_name_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    for length in (241, 255):
        file = tmp_path / ("x" * length)
        for package, layer in layers():
            package.save(layer, file)
            assert package.load(file).config == CONFIG
    for save in (True, False):
        refused_by_all(tmp_path / ("x" * 256), OSError, "got 'File name too long'; check the path", save=save)


def test_a_path_that_names_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused_by_all("", FileNotFoundError, "^'': expected the name of a file, got none", save=True)
    refused_by_all("", FileNotFoundError, "^'': expected a weight file, got no file of this name", save=False)
    refused_by_all(f"{tmp_path}/new/", FileNotFoundError, "expected the name of a file", save=True)
    refused_by_all(tmp_path, IsADirectoryError, "expected a file that can be written, got a folder", save=True)
    refused_by_all(tmp_path / "no" / "x", FileNotFoundError, "expected a folder that exists", save=True)
    file = tmp_path / "file"
    file.write_bytes(b"")
    for save in (True, False):
        refused_by_all(file / "x", NotADirectoryError, "got 'Not a directory'", save=save)
        refused_by_all("a\0b", ValueError, "expected a path without NUL", save=save)
    refused_by_all(3, TypeError, "weights: expected a path .*, got int", save=False)
    assert names(tmp_path) == ["file"]


def test_the_name_of_an_index_is_not_written(tmp_path: Path) -> None:
    """`load` reads such a name as an index, so it could not read the file."""
    index = tmp_path / "model.safetensors.index.json"
    words = r"expected a name that does not end in \.safetensors\.index\.json.*; end it in \.safetensors"
    refused_by_all(index, ValueError, words, save=True)
    refused(lambda: weights.write(index, CONFIG, VALUES, layout="bert"), ValueError, words)
    index.write_text("{}")
    refused_by_all(index, ValueError, words, save=True)
    assert index.read_text() == "{}" and names(tmp_path) == [index.name]


def test_paths_are_text_bytes_or_path_objects(tmp_path: Path) -> None:
    plain = os.path.join(tmp_path, "läyer.safetensors")
    for path in (plain, os.fsencode(plain), Path(plain)):
        for package, layer in layers():
            package.save(layer, path)
            assert package.load(path).config == CONFIG
            loaded = package.load(path, into=layer)
            assert loaded is layer
        assert bits(weights.tensors(path)).keys() == VALUES.keys()
    assert names(tmp_path) == ["läyer.safetensors"]


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the file, not its draft. The superuser may write everywhere, so the system's answer is faked."""
    real = os.open

    def full(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied", path)
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", full)
    file = tmp_path / "layer.safetensors"
    with pytest.raises(PermissionError, match="expected a folder that can be written to, got 'Permission denied'") as e:
        weights.write(file, CONFIG, VALUES)
    assert str(e.value).startswith(f"{file}: ") and ".tmp" not in str(e.value)


# Headers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2**62, 0])
def test_many_axes_are_refused_at_once(size: int, tmp_path: Path) -> None:
    """Their product is a number of a million digits: quadratic in the axes, 5 s for these 40,000."""
    file = tmp_path / "wide.safetensors"
    for axes in (65, 40_000):
        file.write_bytes(assemble(tensor("x", 0, 0, [size] * axes), b""))
        start = time.process_time()
        with pytest.raises(weights.HeaderLimitError, match=f"expected a shape of at most 64 axes, got {axes}"):
            weights.tensors(file)
        assert time.process_time() - start < 0.5


def test_as_many_axes_as_numpy_has(tmp_path: Path) -> None:
    file = tmp_path / "deep.safetensors"
    file.write_bytes(assemble(tensor("x", 0, 4, [1] * 32), bytes(4)))
    assert weights.tensors(file)["x"].shape == (1,) * 32
