"""One layer out of a model's folder: `config.json` describes it, and only the shards with its tensors are read."""

import difflib
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from attn_np.contract import Config
from attn_np.contract._base import is_integer
from attn_np.weights import layouts
from attn_np.weights._check import LayerWeights, Request, check_prefix
from attn_np.weights._errors import ConfigMismatchError, ShardIndexError, first_names
from attn_np.weights._foreign import read_by_table
from attn_np.weights._foreign_config import table_name_and_config
from attn_np.weights._known_types import KNOWN_TYPES
from attn_np.weights._layer_prefixes import find_part, first_prefix, locate_layer
from attn_np.weights._paths import INDEX_SUFFIX, SUFFIXES, PathArg, nearby_files_hint, path_text
from attn_np.weights._shards import open_tensors
from attn_np.weights._text_models import TEXT_MODELS, require_direction, text_model
from attn_np.weights.layouts import Layout
from attn_np.weights.layouts._hf_config import CONFIG, HFConfig, read_hf_config

# Weights that can contain code or are of other libraries.
OTHER_SUFFIXES = (".bin", ".bin.index.json", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf")


@dataclass(frozen=True)
class Pretrained(LayerWeights):
    """One layer of a model.

    Attributes:
        dtype: name of the parameters' float dtype.
        layout: the name of the layout that was used.
        keys: the tensors that were read.
        ignored: the tensors of the same layer that are not part of attention, as the layout says.
    """

    dtype: str
    layout: str
    keys: tuple[str, ...]
    ignored: tuple[str, ...]

    def report(self) -> str:
        """The layer, the tensors that were read and those that were ignored, in words."""
        config = ", ".join(f"{name}={value!r}" for name, value in nondefault_fields(self.config).items())
        return "\n".join(
            [
                f"{self.path}: {self.layout}, {self.config.variant}({config}), {self.dtype}",
                f"read: {', '.join(self.keys)}",
                f"ignored: {', '.join(self.ignored) or 'nothing'}",
            ]
        )


class PopOnRead(dict[str, Any]):
    """A dict that converts each value when it is read, and forgets it, so weights are never held twice."""

    def __init__(self, values: dict[str, Any], convert: Callable[[Any], Any]) -> None:
        super().__init__(values)
        self.convert = convert

    def __getitem__(self, name: str) -> Any:
        return self.convert(self.pop(name))


def pop_on_read(values: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """The values in a `PopOnRead`, taken out of their dict: a layer made of them is not in memory twice."""
    values_once = PopOnRead(values, convert)
    values.clear()
    return values_once


def read_pretrained(
    path: PathArg,
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
    """One layer's attention from a model's folder.

    Only the tensors that the layer uses are read; in T5 and DeBERTa these include a table that all layers share.
    The arguments are those of `attn_np.load_pretrained`.

    Raises:
        WeightFileError: the subclass for what is wrong with the folder, or for a field that our layer cannot represent.
        OSError: a folder or file that does not exist.
        ValueError, TypeError: arguments that cannot be right.
    """
    check_prefix(prefix)
    folder = folder_of(path_text(path))
    if not os.path.isfile(os.path.join(folder, CONFIG)):
        find_weights(path_text(path))  # which says what else is missing
    whole = read_hf_config(os.path.join(folder, CONFIG))
    hf, prefixes = text_model(whole, named=layout is not None)
    layout_name, family_layout = find_layout(hf, layout)
    part = find_part(family_layout, part)
    if not is_integer(layer) or layer < 0:
        raise ValueError(f"weights: expected layer= to be an integer from 0, got {layer!r}; correct it")
    require_direction(whole, fields)
    foreign = hf.get("model_type") not in family_layout.model_types
    table_name, config = table_name_and_config(hf, family_layout, layer, part, fields, foreign=foreign)
    hf.refuse_unread([allow] if isinstance(allow, str) else allow)
    table = family_layout.tables[table_name]
    request = Request(None, config.variant, {}, dtype, cast, finite)
    with open_tensors(find_weights(path_text(path))) as file:
        prefix = prefix or first_prefix(file, family_layout, table, layer, part, prefixes)
        layer_prefixes = locate_layer(file, family_layout, table, layer, part, prefix)
        weights, keys, ignored = read_by_table(
            file,
            layout_name,
            table,
            config,
            layer_prefixes,
            prefix,
            request,
            attention_only=layout is not None or hf.model_type() in family_layout.kin,
        )
    return Pretrained(
        weights.path, weights.config, str(weights.dtype), weights.values, layout_name, tuple(keys), tuple(ignored)
    )


def folder_of(path: str) -> str:
    """The folder of a model: the path itself, or the folder of this file."""
    return path if os.path.isdir(path) else os.path.dirname(path) or os.curdir


def find_weights(path: str) -> str:
    """The path of a model's weights: the path itself if it is a file; in a folder the file or index of the usual name,
    else an index, else the only file of weights.

    Raises:
        FileNotFoundError: no weights, or no `config.json` beside them.
        ShardIndexError: several of these, of which none comes first.
    """
    if not os.path.isdir(path):
        folder = folder_of(path)
        if not os.path.exists(path):
            fix = nearby_files_hint(folder, os.path.basename(path))
            raise FileNotFoundError(f"{path}: expected a model's folder or a weight file, got neither; {fix}")
    else:
        folder, weight_files = path, sorted(name for name in os.listdir(path) if name.endswith(SUFFIXES))
        standard = [name for name in weight_files if name in ("model.safetensors", f"model{INDEX_SUFFIX}")]
        candidates = standard or [name for name in weight_files if name.endswith(INDEX_SUFFIX)] or weight_files
        if not candidates:
            others = sorted(name for name in os.listdir(path) if name.endswith(OTHER_SUFFIXES))
            got, fix = "none", "get it"
            if others:
                got = f"{first_names(others)}, which is not read"
                how = "as save_pretrained(folder, safe_serialization=True) does"
                fix = f"have the model's library write it again, {how}"
            raise FileNotFoundError(f"{path}: expected *.safetensors or its index in this folder, got {got}; {fix}")
        if len(candidates) > 1:
            fix = "name the file, or get the index of the shards"
            raise ShardIndexError(
                path, None, "one weight file or one index in this folder", first_names(candidates), fix
            )
        path = os.path.join(folder, candidates[0])
    if not os.path.isfile(os.path.join(folder, CONFIG)):
        fix = "get it, or read the file with load, layout= and the fields of its Config"
        raise FileNotFoundError(f"{folder}: expected a {CONFIG} beside the weights, got none; {fix}")
    return path


def find_layout(hf: HFConfig, name: str | None) -> tuple[str, Layout]:
    """The name and the layout of a `config.json`'s family.

    Raises:
        ConfigMismatchError: an unknown family, or another than the caller's.
        ValueError: the caller names a layout that is not a family.
    """
    layout_of, model_type = layout_of_model_type(), hf.get("model_type")
    if name is not None:
        layout = layouts.get(name)
        if layout.table_and_fields is None:
            fix = f"choose one of {', '.join(sorted(set(layout_of.values())))}"
            raise ValueError(f"weights: expected a layout whose models have a {CONFIG}, got {name!r}; {fix}")
        if layout_of.get(model_type, name) != name:
            expected = f"a model whose layout is {name}, as that of {', '.join(layout.model_types[:5])}"
            key = f"{hf.prefix}model_type"
            raise ConfigMismatchError(hf.path, key, expected, repr(model_type), "leave layout= out")
        refuse_known_to_differ(hf, name)
        return name, layout
    if model_type not in layout_of:
        refuse_known_to_differ(hf, None)
        key = f"{hf.prefix}model_type"
        raise ConfigMismatchError(
            hf.path, key, "the name of a known family", repr(model_type), nearest_families(model_type)
        )
    return layout_of[model_type], layouts.get(layout_of[model_type])


def nearest_families(model_type: Any) -> str:
    """What to do with a model of an unknown type: the known types with the nearest names, and how to name a layout."""
    known = [*layout_of_model_type(), *TEXT_MODELS]
    close = difflib.get_close_matches(model_type, known, n=3, cutoff=0.6) if isinstance(model_type, str) else []
    hint = f"did you mean {' or '.join(map(repr, close))}? Else " if close else ""
    return f"{hint}name a layout as layout= if the model has its names and numbers, or use the model's own library"


def refuse_known_to_differ(hf: HFConfig, layout_name: str | None) -> None:
    """Refuse a model that is known to compute something else than a layout says, though no field shows it.

    Raises:
        ConfigMismatchError: naming the difference, and the layout that is right if there is one.
    """
    model_type = hf.get("model_type")
    known = KNOWN_TYPES.get(model_type) if isinstance(model_type, str) else None
    if known is None or layout_name in known.layouts:
        return
    fix = "use the library the model was made for"
    if known.layouts:
        fix = f"pass {' or '.join(f'layout={name!r}' for name in known.layouts)}, whose names and numbers it has"
    expected = "the name of a known family" if layout_name is None else f"a model that computes what {layout_name} does"
    raise ConfigMismatchError(hf.path, "model_type", expected, f"{model_type!r}: {known.differs}", fix)


def layout_of_model_type() -> dict[str, str]:
    """The name of the layout of every known `model_type`."""
    return {kind: name for name in layouts.names() for kind in layouts.get(name).model_types}


def nondefault_fields(config: Config) -> dict[str, Any]:
    """The required fields of a config, and those that differ from their default."""
    defaults = {field: getattr(type(config), field, None) for field in config.fields()}
    return {
        name: value for name, value in config.as_dict().items() if name in config.required() or value != defaults[name]
    }
