"""Layers out of a model's folder: `config.json` describes them, and only the shards with their tensors are read."""

import difflib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from attn_np.contract import Config
from attn_np.contract._base import is_integer
from attn_np.weights import layouts
from attn_np.weights._check import LayerWeights, Request, check_prefix, refuse_other_arguments
from attn_np.weights._dequantize import DequantizedFile
from attn_np.weights._errors import (
    MERGE_ADAPTERS,
    ConfigMismatchError,
    NoAttentionError,
    ShardIndexError,
    first_names,
)
from attn_np.weights._foreign import read_by_table
from attn_np.weights._foreign_config import table_name_and_config, with_max_positions
from attn_np.weights._known_types import KNOWN_TYPES, NO_LAYOUT_YET
from attn_np.weights._layer_prefixes import find_part, first_prefix, keys_in_layer, layers_by_prefix, locate_layer
from attn_np.weights._paths import INDEX_SUFFIX, SUFFIXES, PathArg, nearby_files_hint, path_text
from attn_np.weights._progress import progress
from attn_np.weights._quantization import Scheme
from attn_np.weights._shards import OpenFile, StoredFile, open_tensors
from attn_np.weights._text_models import TEXT_MODELS, VISION, require_direction, text_model, vision_model
from attn_np.weights.layouts import Layout
from attn_np.weights.layouts._hf_config import CONFIG, HFConfig, read_hf_config
from attn_np.weights.layouts.meta_llama import MODEL_TYPE

# What stands beside Meta's own files, and beside peft's.
PARAMS, ADAPTER_CONFIG = "params.json", "adapter_config.json"
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


@dataclass(frozen=True)
class DescribedLayer:
    """What a `config.json` says of one layer.

    Attributes:
        number: the layer's number.
        part: the name of the part.
        layout_name: the name of the layout.
        layout: the layout.
        table_name: the name of the table in it.
        config: the contract's Config.
        prefixes: what may stand before the keys of the layout.
        attention_only: whether keys outside of attention may have any name.
        scheme: how the weights are quantised; None if they are not.
    """

    number: int
    part: str
    layout_name: str
    layout: Layout
    table_name: str
    config: Config
    prefixes: tuple[str, ...]
    attention_only: bool
    scheme: Scheme | None


def read_pretrained(
    path: PathArg,
    layer: int,
    *,
    part: str | None = None,
    layout: str | None = None,
    prefix: str = "",
    allow: Collection[str] = (),
    dequantize: bool = False,
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
    refuse_other_arguments("load_pretrained", fields)
    found = described_layer(config_of(path, layout), layer, part, layout, allow, dequantize, fields)
    with open_tensors(find_weights(path_text(path), layout)) as file:
        return read_described(file, found, prefix, Request(None, found.config.variant, {}, dtype, cast, finite))


def read_pretrained_layers(
    path: PathArg,
    *,
    part: str | None = None,
    layout: str | None = None,
    prefix: str = "",
    allow: Collection[str] = (),
    dequantize: bool = False,
    dtype: str | None = None,
    cast: bool = False,
    finite: bool = True,
    **fields: Any,
) -> Iterator[Pretrained | None]:
    """Every layer's attention from a model's folder, one after the other; None for a layer that does not attend.

    All are described before the first is read, and each is read when it is asked for. A terminal shows how far it is.

    Raises:
        WeightFileError, OSError, ValueError, TypeError: as `read_pretrained`, for the first layer that is refused.
        NoAttentionError: no layer attends.
    """
    check_prefix(prefix)
    refuse_other_arguments("load_pretrained", fields)
    whole, refusals = config_of(path, layout), []

    def described(number: int) -> DescribedLayer | None:
        try:
            return described_layer(whole.unread_copy(), number, part, layout, allow, dequantize, fields)
        except NoAttentionError as error:
            refusals.append(error)
            return None

    layers, count = [described(0)], whole.layer_count()
    if count is None and layers[0] is not None:
        with open_tensors(find_weights(path_text(path), layout)) as file:
            count = stored_layers(file, layers[0], prefix)
    layers += [described(number) for number in range(1, count or 1)]
    if not any(layers):
        if count is None:
            expected, fix = (
                "this field, as layer 0 does not attend",
                "write it into a copy of this file, or pass layer=",
            )
            raise ConfigMismatchError(whole.path, "num_hidden_layers", expected, "none", fix)
        raise refusals[0]
    with open_tensors(find_weights(path_text(path), layout)) as file, progress("load_pretrained") as tell:
        for number, found in enumerate(layers):
            tell(f"layer {number} of {len(layers)}")
            if found is None:
                yield None
            else:
                request = Request(None, found.config.variant, {}, dtype, cast, finite)
                yield read_described(file, found, prefix, request)


def config_of(path: PathArg, layout: str | None) -> HFConfig:
    """The fields of the `config.json` in a model's folder; of Meta's own files, those of `params.json`.

    Raises:
        ConfigMismatchError: it cannot be read.
        OSError: no folder, or no `config.json` in it.
    """
    folder = folder_of(path_text(path))
    if own_files(folder, layout):
        hf = read_hf_config(os.path.join(folder, PARAMS))
        return HFConfig(hf.path, {key: hf.get(key) for key in hf} | {"model_type": MODEL_TYPE})
    if not os.path.isfile(os.path.join(folder, CONFIG)):
        find_weights(path_text(path), layout)  # which says what else is missing
    return read_hf_config(os.path.join(folder, CONFIG))


def described_layer(
    whole: HFConfig,
    layer: int,
    part: str | None,
    layout: str | None,
    allow: Collection[str],
    dequantize: bool,
    fields: Mapping[str, Any],
) -> DescribedLayer:
    """What a `config.json` and the caller's fields say of a layer.

    Raises:
        ConfigMismatchError: a field that our layer cannot represent.
        ValueError, TypeError: arguments that cannot be right.
    """
    named = layout is not None and "vision_config" in whole and whole.model_type() not in layout_of_model_type()
    sees = part == VISION and (named or whole.model_type() in TEXT_MODELS)
    hf, prefixes = vision_model(whole) if sees else text_model(whole, named=layout is not None)
    stated = hf if "quantization_config" in hf else whole
    layout_name, family_layout = find_layout(hf, layout)
    if sees and VISION not in family_layout.prefixes:
        part = None  # a family of towers alone
    part = find_part(family_layout, part)
    if not is_integer(layer) or layer < 0:
        raise ValueError(f"weights: expected layer= to be an integer from 0, got {layer!r}; correct it")
    if not sees:
        require_direction(whole, fields)
    foreign = hf.get("model_type") not in family_layout.model_types
    table_name, config = table_name_and_config(hf, family_layout, layer, part, fields, foreign=foreign)
    if "max_positions" not in fields:
        config = with_max_positions(hf, family_layout.tables[table_name], config)
    # Read by a family whose attention is not quantised where the rest of the model is.
    quantized = "quantization_config" in stated and f"{stated.prefix}quantization_config" in stated.unread()
    if quantized and not dequantize:
        stated.refuse_quantized()
    scheme = stated.scheme() if quantized else None
    hf.refuse_unread([allow] if isinstance(allow, str) else allow)
    attention_only = layout is not None or hf.model_type() in family_layout.kin
    return DescribedLayer(layer, part, layout_name, family_layout, table_name, config, prefixes, attention_only, scheme)


def read_described(stored: StoredFile, found: DescribedLayer, prefix: str, request: Request) -> Pretrained:
    """A layer of an open file.

    Raises:
        WeightFileError: the subclass that says what is wrong with the file.
    """
    table = found.layout.tables[found.table_name]
    file: OpenFile = stored
    prefix = prefix or first_prefix(file, found.layout, table, found.number, found.part, found.prefixes)
    if found.scheme is not None:
        request = replace(request, dtype=request.dtype or "float32")
        file = DequantizedFile(stored, found.scheme, str(request.dtype))
    weights, keys, ignored = read_by_table(
        file,
        found.layout_name,
        table,
        found.config,
        locate_layer(file, found.layout, table, found.number, found.part, prefix),
        prefix,
        request,
        attention_only=found.attention_only,
    )
    keys += file.scales_of(keys) if isinstance(file, DequantizedFile) else []
    return Pretrained(
        weights.path, weights.config, str(weights.dtype), weights.values, found.layout_name, tuple(keys), tuple(ignored)
    )


def stored_layers(file: OpenFile, first: DescribedLayer, prefix: str) -> int:
    """The number of layers in a file whose `config.json` does not say it: one more than the last that is there."""
    table = first.layout.tables[first.table_name]
    prefix = prefix or first_prefix(file, first.layout, table, first.number, first.part, first.prefixes)
    keys = [key[len(prefix) :] for key in file.entries if key.startswith(prefix)]
    found = layers_by_prefix(first.layout.prefixes_of(first.part), keys_in_layer(table), keys)
    return 1 + max((number for number, _ in found.values()), default=0)


def folder_of(path: str) -> str:
    """The folder of a model: the path itself, or the folder of this file."""
    return path if os.path.isdir(path) else os.path.dirname(path) or os.curdir


def own_files(folder: str, layout: str | None) -> bool:
    """Whether a folder's Meta's own files are meant: it has no others, or their layout is asked for."""
    has_params = os.path.isfile(os.path.join(folder, PARAMS))
    return has_params and (layout == MODEL_TYPE or not os.path.isfile(os.path.join(folder, CONFIG)))


def find_weights(path: str, layout: str | None) -> str:
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
        usual = "consolidated" if own_files(folder, layout) else "model"
        standard = [name for name in weight_files if name in (f"{usual}.safetensors", f"{usual}{INDEX_SUFFIX}")]
        candidates = standard or [name for name in weight_files if name.endswith(INDEX_SUFFIX)] or weight_files
        if not candidates:
            others = sorted(name for name in os.listdir(path) if name.endswith(OTHER_SUFFIXES))
            got, fix = "none", "get it"
            if others:
                got = f"{first_names(others)}, which is not read"
                fix = "have the model's library write it again, as save_pretrained(folder) of transformers does"
                if own_files(folder, layout):
                    fix = "write what torch.load(file, weights_only=True) gives with safetensors.torch.save_file"
            raise FileNotFoundError(f"{path}: expected *.safetensors or its index in this folder, got {got}; {fix}")
        if len(candidates) > 1:
            fix = "name the file, or get the index of the shards"
            raise ShardIndexError(
                path, None, "one weight file or one index in this folder", first_names(candidates), fix
            )
        path = os.path.join(folder, candidates[0])
    if not own_files(folder, layout) and not os.path.isfile(os.path.join(folder, CONFIG)):
        fix = "get it, or read the file with load, layout= and the fields of its Config"
        fix = MERGE_ADAPTERS if os.path.isfile(os.path.join(folder, ADAPTER_CONFIG)) else fix
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
        expected, got, fix = "the name of a known family", repr(model_type), nearest_layouts(model_type)
        if model_type in NO_LAYOUT_YET:
            expected, got = "a family that a layout reads", f"{got}, which is known and has no layout yet"
        raise ConfigMismatchError(hf.path, f"{hf.prefix}model_type", expected, got, fix)
    return layout_of[model_type], layouts.get(layout_of[model_type])


def nearest_layouts(model_type: Any) -> str:
    """What to do with a model of an unknown type: the layouts of types with the nearest names, and how to name one."""
    layout_of, close = layout_of_model_type(), []
    if isinstance(model_type, str) and model_type not in NO_LAYOUT_YET:
        close = difflib.get_close_matches(model_type, layout_of, n=3, cutoff=0.6)
    nearest = " or ".join(f"layout={name!r}" for name in dict.fromkeys(layout_of[kind] for kind in close))
    hint = f"did you mean {nearest}? Else " if nearest else ""
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
