"""One layer out of a model's folder: `config.json` says what it is, the shards that hold it are read, and no other."""

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from attn_np.contract import Config
from attn_np.weights import layouts
from attn_np.weights._check import Wanted, WeightFile
from attn_np.weights._errors import ConfigMismatchError, ShardIndexError, listed
from attn_np.weights._foreign import SAID, block, described, placed, read_table
from attn_np.weights._header import INDEX_SUFFIX, SUFFIXES, at_hand
from attn_np.weights._shards import opened
from attn_np.weights.layouts import Layout
from attn_np.weights.layouts._base import TRAINING
from attn_np.weights.layouts._stated import CONFIG, Stated, stated_in

# Weights that can hold code or are of other libraries.
OTHERS = (".bin", ".bin.index.json", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf")


@dataclass(frozen=True)
class Pretrained(WeightFile):
    """What a model gave for one layer.

    Attributes:
        dtype: name of the parameters' float dtype.
        family: the layout that was recognised.
        keys: the tensors that were read.
        left_out: the tensors of the same layer that are no part of it, as the layout says.
    """

    dtype: str
    family: str
    keys: tuple[str, ...]
    left_out: tuple[str, ...]

    def report(self) -> str:
        """What was read and what was left out, in words."""
        config = ", ".join(f"{name}={value!r}" for name, value in changed(self.config).items())
        return "\n".join(
            [
                f"{self.path}: {self.family}, {self.config.variant}({config}), {self.dtype}",
                f"read: {', '.join(self.keys)}",
                f"left out: {', '.join(self.left_out) or 'nothing'}",
            ]
        )


class Once(dict[str, Any]):
    """Values that are given away as they are asked for, so that nobody holds them beside the one who asked."""

    def __getitem__(self, name: str) -> Any:
        return self.pop(name)


def once(values: dict[str, Any]) -> dict[str, Any]:
    """The values, taken out of their dictionary, to be asked for once: a layer made of them is not held twice."""
    taken = Once(values)
    values.clear()
    return taken


def changed(config: Config) -> dict[str, Any]:
    """The fields of a config that have no default or are not at it."""
    usual = {field: getattr(type(config), field, None) for field in config.fields()}
    return {
        name: value for name, value in config.as_dict().items() if name in config.required() or value != usual[name]
    }


def read_pretrained(
    path: str | PathLike[str],
    layer: int,
    *,
    part: str | None = None,
    layout: str | None = None,
    prefix: str = "",
    allow: Collection[str] = (),
    dtype: str | None = None,
    cast: bool = False,
    finite: bool = True,
    **fields: Any,
) -> Pretrained:
    """Read one layer's attention out of a model's folder, and nothing else of it.

    Args:
        path: the folder with `config.json` and the weights, or one file or index in it.
        layer: the layer's number, from 0.
        part: which block of attention, where a layer has several, such as "cross".
        layout: the family, for a `config.json` that calls it by a name that nobody knows.
        prefix: what stands before the family's keys, where the model is a part of another.
        allow: fields of `config.json` that are unknown here and leave attention as it is.
        dtype: the dtype wanted; the file's own by default.
        cast: allow another dtype in the file, rounded once.
        finite: refuse NaN and infinities.
        fields: fields of the Config that such a file does not state: `dropout`, `max_positions`.

    Raises:
        WeightFileError: the subclass that says what is wrong with the folder, or what cannot be represented.
        ValueError, TypeError: arguments that cannot be right.
    """
    folder, file = located(os.fspath(path))
    stated = stated_in(os.path.join(folder, CONFIG))
    name, found = recognised(stated, layout)
    chosen = block(found, part)
    if isinstance(layer, bool) or not isinstance(layer, int) or layer < 0:
        raise ValueError(f"expected layer= to be an integer from 0, got {layer!r}; correct it")
    table, config = described(stated, found, layer, chosen)
    stated.finish([allow] if isinstance(allow, str) else allow)
    config = completed(config, found, table, fields)
    wanted = Wanted(config, config.variant, {}, dtype, cast, finite)
    with opened(file) as tensors:
        place = placed(tensors, found, found.tables[table], layer, part, prefix)
        held, keys, left_out = read_table(tensors, name, found.tables[table], config, place, prefix, wanted)
    return Pretrained(held.path, held.config, str(held.dtype), held.values, name, tuple(keys), tuple(left_out))


def located(path: str) -> tuple[str, str]:
    """The folder of a model and its weights: the file given, or the only one that the folder offers."""
    if not os.path.isdir(path):
        folder = os.path.dirname(path) or os.curdir
        if not os.path.exists(path):
            todo = at_hand(folder, os.path.basename(path))
            raise FileNotFoundError(f"{path}: expected a model's folder or a weight file, got neither; {todo}")
    else:
        folder, known = path, sorted(name for name in os.listdir(path) if name.endswith(SUFFIXES))
        usual = [name for name in known if name in ("model.safetensors", f"model{INDEX_SUFFIX}")]
        whole = usual or [name for name in known if name.endswith(INDEX_SUFFIX)] or known
        if len(whole) != 1:
            others = sorted(name for name in os.listdir(path) if name.endswith(OTHERS))
            if not whole and others:
                expected, todo = "*.safetensors or its index in this folder", "have the model's library write it again"
                how = f"{todo}, as save_pretrained(folder, safe_serialization=True) does"
                raise FileNotFoundError(f"{path}: expected {expected}, got {listed(others)}, which is not read; {how}")
            if not whole:
                raise FileNotFoundError(f"{path}: expected *.safetensors or its index in this folder, got none; get it")
            todo = "name the file, or get the index that says which shard holds what"
            raise ShardIndexError(path, None, "one weight file or one index in this folder", listed(whole), todo)
        path = os.path.join(folder, whole[0])
    if not os.path.isfile(os.path.join(folder, CONFIG)):
        todo = "get it, or read the file with load, layout= and the fields of its Config"
        raise FileNotFoundError(f"{folder}: expected a {CONFIG} beside the weights, got none; {todo}")
    return folder, path


def families() -> dict[str, str]:
    """Every `model_type` that is known, and the layout that reads it."""
    return {kind: name for name in layouts.names() for kind in layouts.get(name).model_types}


def recognised(stated: Stated, layout: str | None) -> tuple[str, Layout]:
    """The family that a `config.json` is of.

    Raises:
        ConfigMismatchError: none that is known, or another than the caller says.
        ValueError: the caller names a layout that is no family.
    """
    known, kind = families(), stated.get("model_type")
    if layout is not None:
        found = layouts.get(layout)
        if found.config is None:
            todo = f"choose one of {', '.join(sorted(set(known.values())))}"
            raise ValueError(f"expected a layout whose models have a {CONFIG}, got {layout!r}; {todo}")
        if known.get(kind, layout) != layout:
            todo = "leave layout= out"
            raise ConfigMismatchError(stated.file, "model_type", f"one of {found.model_types}", repr(kind), todo)
        return layout, found
    if kind not in known:
        todo = f"known are {', '.join(sorted(known))}; name one as layout= where the model has its names and numbers"
        raise ConfigMismatchError(stated.file, "model_type", "the name of a family that is known", repr(kind), todo)
    return known[kind], layouts.get(known[kind])


def completed(config: Config, layout: Layout, table: str, fields: dict[str, Any]) -> Config:
    """The config with what the caller may say of it."""
    free = {*TRAINING, *SAID} & set(config.fields())
    for name in fields:
        if name not in free:
            rule = f"{', '.join(sorted(free))} of {config.variant} alone beside what {CONFIG} states"
            raise TypeError(f"load_pretrained: expected {rule}, got {name!r}; leave it out")
    return replace(config, **fields)
