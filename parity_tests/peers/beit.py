"""BEiT: patches of a picture and a class token, with a table of offsets in each layer or one for all."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from parity_tests.peers import Arrays, Model

SMALL: dict[str, Any] = {
    "vocab_size": 11,
    "hidden_size": 12,
    "intermediate_size": 5,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "image_size": 7,
    "patch_size": 2,
    "num_channels": 2,
}
OWN: dict[str, Any] = {"use_relative_position_bias": True}
SHARED: dict[str, Any] = {"use_shared_relative_position_bias": True}


def picture(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Two pictures of nine patches."""
    return {"pixel_values": torch.from_numpy(rng.normal(size=(2, 2, 7, 7)))}


def with_hidden_patches(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """The same, without the last patches of the second picture."""
    mask = torch.ones(2, 10, dtype=torch.int64)
    mask[1, 7:] = 0
    return picture(rng) | {"attention_mask": mask}


def shown(given: Mapping[str, torch.Tensor], call: Mapping[str, Any]) -> Arrays:
    """Our `mask`, of the keys alone: what the module gets has the biases as well."""
    mask = given.get("attention_mask")
    return {} if mask is None else {"mask": mask.numpy()[:, None, None, :] == 1}


def peer(name: str, start: str, fields: dict[str, Any], given: Any = picture, **more: Any) -> Model:
    return Model(name, SMALL | fields, f"{start}layers.{{layer}}.attention", given=given, **more)


AT = "encoder.layer.{layer}.attention"
PEERS = {
    "a table in each layer": peer("BeitForImageClassification", "beit.", OWN, shards="4KB"),
    "one table": peer("BeitModel", "", SHARED, layers=(1,)),
    "patches that are hidden": peer("BeitModel", "", OWN, layers=(1,), given=with_hidden_patches, meaning=shown),
    "no table": peer("BeitForMaskedImageModeling", "beit.", {"use_absolute_position_embeddings": True}),
    "Data2Vec": Model("Data2VecVisionForImageClassification", SMALL | OWN, f"data2vec_vision.{AT}", given=picture),
    "Data2Vec's one table": Model("Data2VecVisionModel", SMALL | SHARED, AT, layers=(1,), given=picture),
}

EACH = PEERS["a table in each layer"]
REFUSED = {
    "both tables": (EACH, SHARED, "'use_shared_relative_position_bias': expected false beside"),
    "an oblong picture": (EACH, {"image_size": [8, 6]}, "'image_size': expected a square with sides of at least"),
    "a picture smaller than a patch": (
        EACH,
        {"patch_size": 8},
        "'image_size': expected a square with sides of at least a patch, 8",
    ),
    "oblong patches": (EACH, {"patch_size": [2, 3]}, "'patch_size': expected an integer from 0"),
    "fewer layers": (EACH, {"num_hidden_layers": 1}, "'num_hidden_layers': expected more than 1"),
}
