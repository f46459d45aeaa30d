"""Paths of weight files: what may be opened for reading, and how a file is replaced whole or not at all."""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from typing import Any, BinaryIO

from attn_np.contract import did_you_mean
from attn_np.weights._errors import LISTED_NAMES, sanitized

INDEX_SUFFIX = ".safetensors.index.json"
SUFFIXES = (".safetensors", INDEX_SUFFIX)
KINDS = ((stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))

PathArg = str | bytes | PathLike[str] | PathLike[bytes]


def path_text(path: Any) -> str:
    """A path as text.

    Raises:
        TypeError: neither str, bytes nor os.PathLike.
        ValueError: a path with a NUL, which no file system has.
    """
    try:
        text = os.fsdecode(path)
    except TypeError:
        got = type(path).__qualname__
        raise TypeError(f"weights: expected a path (str, bytes or os.PathLike), got {got}; name the file") from None
    if "\0" in text:
        raise ValueError(f"{sanitized(text)}: expected a path without NUL, got one with it; correct it")
    return text


def open_regular(path: str, what: str = "a weight file") -> BinaryIO:
    """A regular file, open for reading.

    Everything else is refused before it is opened: a FIFO blocks for ever, and opening a device can act on it.

    Raises:
        FileNotFoundError, IsADirectoryError: with the weight files beside it.
        OSError: not a regular file, or one that cannot be opened.
    """
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode):
            return open(path, "rb")
    except FileNotFoundError as error:
        fix = nearby_files_hint(os.path.dirname(path) or os.curdir, os.path.basename(path))
        raise FileNotFoundError(message(path, what, "no file of this name", fix)) from error
    except OSError as error:
        raise with_message(error, path, what) from error
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(message(path, what, "a folder", nearby_files_hint(path, "")))
    raise OSError(message(path, what, kind_of(mode), "copy its content into a regular file"))


def nearby_files_hint(folder: str, name: str) -> str:
    """The end of an error message: the weight files of a folder nearest to `name`, or all if none is near."""
    if not os.path.isdir(folder):
        return f"there is no folder {folder!r}; check the path"
    known = [file for file in sorted(os.listdir(folder)) if file.endswith(SUFFIXES)]
    return did_you_mean(name, known[: LISTED_NAMES * 4]) if known else f"the folder {folder!r} has none; check the path"


@contextmanager
def replace_file(path: str) -> Iterator[BinaryIO]:
    """A stream for the new content of a file, which changes when the block ends and stays as it is if the block raises.

    The content goes to a draft in the same folder, which is brought to the disk and then renamed: a crash leaves the
    old file or the new one. A file that is replaced keeps its permissions, and a symbolic link stays a link.

    Raises:
        FileNotFoundError: an empty path, or a folder that does not exist.
        PermissionError: a read-only file or folder.
        ValueError: the name of an index of shards.
        OSError: a folder, a FIFO, a device or a socket.
    """
    target, mode = writable_target(path)
    folder = os.path.dirname(target)
    # Its length does not depend on the target's name, which may be as long as the file system allows.
    draft = os.path.join(folder, f".{secrets.token_hex(8)}.tmp")
    try:
        # With the permissions from the start: a private file is private while it is written.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        handle = os.open(draft, flags, 0o666 if mode is None else mode)
    except OSError as error:
        raise with_message(error, path, "a folder that can be written to") from error
    try:
        with os.fdopen(handle, "wb") as stream:
            if mode is not None:  # without the umask
                os.chmod(draft, mode)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, target)
    except BaseException:
        if os.path.exists(draft):
            os.remove(draft)
        raise
    sync_folder(folder)


def writable_target(path: str) -> tuple[str, int | None]:
    """The file that a path leads to through links, and its permissions; None for a file that does not exist yet.

    Raises:
        OSError, ValueError: as `replace_file`.
    """
    what, target = "a file that can be written", os.path.realpath(path)
    if not os.path.basename(path):
        raise FileNotFoundError(message(path, "the name of a file", "none", "name the file to write"))
    if path.endswith(INDEX_SUFFIX):
        fix = "end it in .safetensors"
        raise ValueError(message(path, f"a name that does not end in {INDEX_SUFFIX}", "the name of an index", fix))
    try:
        status = os.stat(path)
    except FileNotFoundError as error:
        folder = os.path.dirname(target)
        if os.path.isdir(folder):
            return target, None
        fix = "make it, or check the path"
        raise FileNotFoundError(message(path, "a folder that exists", f"no folder {folder!r}", fix)) from error
    except OSError as error:
        raise with_message(error, path, what) from error
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(message(path, what, "a folder", "name a file in it"))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(message(path, "a regular file", kind_of(status.st_mode), "name another file"))
    # The superuser may write everywhere: for them the permissions are the only sign that a file is to stay.
    if not status.st_mode & 0o222 or not os.access(path, os.W_OK):
        raise PermissionError(message(path, what, "a read-only one", "name another file, or make it writable"))
    return target, stat.S_IMODE(status.st_mode)


def sync_folder(folder: str) -> None:
    """Bring a renaming to the disk, where the file system can: by now the file is replaced, whatever happens here."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def kind_of(mode: int) -> str:
    """The kind of a file that is not regular, from its mode."""
    return next((kind for test, kind in KINDS if test(mode)), "no regular file")


def with_message(error: OSError, path: str, expected: str) -> OSError:
    """An error of the same type and number, with a message that says what was expected."""
    same = type(error)(message(path, expected, f"{error.strerror!r}", "check the path"))
    same.errno = error.errno
    return same


def message(path: str, expected: str, got: str, fix: str) -> str:
    return sanitized(f"{path or repr(path)}: expected {expected}, got {got}; {fix}", None)
