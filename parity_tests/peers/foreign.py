"""Every model type that no layout names, under every `layout=` that a caller may say: right numbers or a refusal.

`python -m parity_tests.peers.foreign` builds each such type of the installed `transformers` small, with drawn weights,
and asks for its layers under each layout. What loads is held against the model as the known types are, by NumPy and
PyTorch; what is not the model's numbers, or ends in another error than one of files, is a fault, and the command fails.
It also names what loads of models that it cannot call.
"""

import importlib
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import attn_np
from attn_np.weights import WeightFileError, layouts
from attn_np.weights._pretrained import layout_of_model_type
from attn_np.weights._text_models import TEXT_MODELS
from attn_np.weights.layouts import Layout
from parity_tests.peers import _measure, tokens
from parity_tests.peers._derived import INSIDE, SIZES, Derived, of_its_kind, of_towers, pictures, small_fields
from parity_tests.peers.sweep import CAUSAL, EVERY, PAGE, SECTION, registered, same_config, wrapped
from parity_tests.ports.modules.in_float64 import InFloat64

AGREES, REFUSED, FAULT, NOT_CALLED = "agrees", "refused", "FAULT", "not called"
TYPES = "types"
# Small numbers by further names.
SMALL = SIZES | {
    "out_hidden_size": 24, "text_hidden_size": 24, "condition_dim": 24, "audio_hidden_size": 24, "adapter_in_dim": 24,
    "adapter_out_dim": 24, "adapter_input_size": 24, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
    "upsample_groups": 2, "prediction_length": 3, "context_size": 8, "num_windows": 4, "blank_token_id": 0,
    "embed_dim": 24, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 4,
    "num_decoder_attention_heads": 4, "num_attn_heads": 4, "codebook_dim": 24, "ffn_dim": 6, "output_dim": 24,
    "vector_quantization_hidden_dimension": 24, "projector_hidden_size": 24, "projection_dim": 24, "num_filters": 4,
    "n_filters": 4, "encoder_hidden_size": 24, "decoder_hidden_size": 24, "encoder_hidden_dim": 24,
    "entity_vocab_size": 23, "entity_emb_size": 24, "d_latents": 24, "num_latents": 5, "input_vocab_size": 23,
    "output_vocab_size": 23, "hidden_size_global": 24, "encoder_hash_byte_group_vocab": 23, "num_kv_shared_layers": 0,
    "per_layer_config": None, "vocab_size_per_layer_input": 23, "num_queries": 5, "latent_channels": 32,
}  # fmt: skip
# In models that need more than words or a picture, the one that is called alone.
INNER = {
    "align": "text_model",
    "qwen2_5_omni_thinker": "model.language_model",
    "ultravbert": "model.vision_model",
    **dict.fromkeys(("blip-2", "instructblip", "instructblipvideo"), "language_model"),
}


def sound_and_words(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Two texts and two sounds."""
    return tokens(rng) | {"input_values": torch.from_numpy(rng.normal(size=(2, 1, 6400)))}


# What some models are called with beside, or instead.
CALLS: dict[str, Any] = {
    **dict.fromkeys(INNER, tokens),
    **dict.fromkeys(("chinese_clip", "vision-text-dual-encoder"), of_towers),
    "pe_audio": sound_and_words,
    "ultravbert": pictures,
}
# Widths of which a type is built with the first that its sizes allow.
WIDTHS = (24, 32, 64)
# Parameters of a model that is drawn.
MOST = 2**26


@dataclass(frozen=True)
class Foreign(Derived):
    """A model whose type no layout names, read under one that the caller says.

    Attributes:
        said: the layout's name.
        built: the model, which is the same under every layout.
    """

    said: str = ""
    built: Any = None

    def layout(self) -> Layout:
        return layouts.get(self.said)

    def settings(self) -> Any:
        """The library's config, with the first width that it can have."""
        kind = importlib.import_module("transformers").CONFIG_MAPPING[self.model_type]
        for width in WIDTHS:
            sizes = {name: width if x == WIDTHS[0] else x for name, x in SMALL.items()}
            try:
                config = kind(**small_fields(self.model_type, sizes))
                with torch.device("meta"):
                    empty = self.kind()._from_config(config, attn_implementation=self.attention)
            except Exception:
                if width == WIDTHS[-1]:
                    raise
                continue
            count = sum(param.numel() for param in empty.parameters())
            if count > MOST:
                raise ValueError(f"{count / 1e6:.0f} million parameters, where {MOST / 1e6:.0f} are drawn")
            return config
        return None

    def model(self) -> Any:
        return super().model() if self.built is None else self.built


def foreign_types() -> tuple[str, ...]:
    """The types that the library registers and no layout names, those of causal language models first."""
    known = {*layout_of_model_type(), *TEXT_MODELS, *INSIDE, *same_config()}
    return tuple(kind for kind in dict.fromkeys((*registered(CAUSAL), *registered(EVERY))) if kind not in known)


def verdicts(model_type: str, folder: Path) -> Iterator[tuple[str, str, str]]:
    """Layout, verdict and words for a type under every layout; none where no small model of it can be built."""
    model = Foreign(model_type, {}, "", model_type=model_type)
    model = replace(model, built=model.model())
    model.built.save_pretrained(folder)
    if model_type in INNER:
        model.built.forward = model.built.get_submodule(INNER[model_type]).forward
    for name in layouts.names():
        for part in layouts.get(name).parts():
            asked = replace(model, said=name, part=part or None, fields={"layout": name})
            yield name + (part and f", {part}"), *verdict(asked, folder)


def verdict(model: Foreign, folder: Path) -> tuple[str, str]:
    """What one layout makes of a model's file; the model runs only where a layer of it loads."""
    try:
        for layer in model.layers:
            model.loader(folder, layer)(attn_np)
    except (WeightFileError, ValueError) as error:
        return REFUSED, str(error).splitlines()[0]
    except Exception as error:  # whatever else a load ends in is what is looked for
        return FAULT, f"{type(error).__name__}: {error}"
    try:
        given = CALLS.get(model.model_type, of_its_kind(model))(np.random.default_rng(5))
        with InFloat64(), torch.no_grad():
            model.built(**given)
    except Exception as error:  # the library's own, of a call that this does not know
        return NOT_CALLED, f"{type(error).__name__}: {error}"
    ratios = [max(ratios.values()) for _, ratios in _measure.measured(replace(model, given=lambda _: given), folder)]
    worst = max(ratios, default=0.0)
    if not ratios:
        return NOT_CALLED, "no call of the model reaches these layers"
    return (AGREES if worst <= 1 else FAULT), f"{worst:.3g} bounds"


@dataclass
class Found:
    """What a run found.

    Attributes:
        counts: of types and of pairs of a type and a layout, by verdict.
        agreeing: by type, the layouts under which it has the model's numbers.
        not_called: by type, the layouts under which it loads and is not compared.
        not_built: the types of which no small model is built, those last that need a package that is not there.
    """

    counts: Counter[str] = field(default_factory=Counter)
    agreeing: dict[str, list[str]] = field(default_factory=dict)
    not_called: dict[str, list[str]] = field(default_factory=dict)
    not_built: dict[str, str] = field(default_factory=dict)


def section(found: Found) -> str:
    """The part of docs/model_types.md that says what a run found."""
    asked, pairs = found.counts[TYPES], sum(found.counts[x] for x in (AGREES, REFUSED, FAULT, NOT_CALLED))
    lacking = sorted(kind for kind, words in found.not_built.items() if words.startswith("ImportError"))
    rest = sorted(found.not_built.keys() - set(lacking))
    words = (
        "`python -m parity_tests.peers.foreign --write` writes this section: what becomes of the library's other types "
        f"where a caller names a layout for them. {asked} of {asked + len(found.not_built)} are built small, each is "
        f"asked for under every `layout=` and `part=`: of {pairs} pairs {found.counts[REFUSED]} are refused by name, "
        f"{found.counts[AGREES]} load and agree, {found.counts[FAULT]} load with other numbers, and "
        f"{found.counts[NOT_CALLED]} load and are not compared, as the model is not called here."
    )
    loads = {kind: (names, "agrees") for kind, names in found.agreeing.items()}
    loads |= {kind: (names, "not compared") for kind, names in found.not_called.items()}
    rows = (f"| `{kind}` | {', '.join(f'`{x}`' for x in names)} | {how} |" for kind, (names, how) in loads.items())
    return "\n".join(
        [
            *(SECTION, "", wrapped(words), "", "| `model_type` | `layout=` | Numbers |", "| --- | --- | --- |"),
            *sorted(rows),
            *("", wrapped(f"Not built: {', '.join(f'`{kind}`' for kind in rest)}."), ""),
            wrapped(f"Not built for want of a package: {', '.join(f'`{kind}`' for kind in lacking)}."),
            "",
        ]
    )


def main(arguments: list[str]) -> int:
    """Ask for every type, or those that are named, and print what is not refused; with `--write` write the page."""
    warnings.filterwarnings("ignore")
    _measure.TREES = ("attn_np", "attn_torch")
    run = Found()
    for model_type in [x for x in arguments if not x.startswith("-")] or foreign_types():
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = list(verdicts(model_type, Path(folder)))
            except Exception as error:  # the library's own, of sizes that this does not know
                run.not_built[model_type] = f"{type(error).__name__}: {' '.join(str(error).split())}"
                print(f"{model_type:28} not built: {run.not_built[model_type][:140]}", flush=True)
                continue
        run.counts[TYPES] += 1
        run.counts.update(verdict for _, verdict, _ in found)
        for name, verdict, words in found:
            if verdict != REFUSED:
                print(f"{model_type:28} {name:24} {verdict:10} {' '.join(words.split())[:120]}", flush=True)
            if verdict in (AGREES, NOT_CALLED):
                by_type = run.agreeing if verdict == AGREES else run.not_called
                by_type.setdefault(model_type, []).append(name)
    print(", ".join(f"{verdict} {count}" for verdict, count in run.counts.items()), f"not built {len(run.not_built)}")
    if "--write" in arguments:
        PAGE.write_text(PAGE.read_text("utf-8").partition(SECTION)[0] + section(run), "utf-8")
    return int(run.counts[FAULT] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
