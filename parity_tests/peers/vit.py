"""ViT: patches of a picture look at each other."""

from typing import Any

import numpy as np
import torch

from parity_tests.peers import Model

SMALL: dict[str, Any] = {
    "hidden_size": 12,
    "intermediate_size": 5,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "image_size": 6,
    "patch_size": 2,
    "num_channels": 2,
}


def picture(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Two pictures of nine patches."""
    return {"pixel_values": torch.from_numpy(rng.normal(size=(2, 2, 6, 6)))}


PEERS = {
    "classes": Model("ViTForImageClassification", SMALL, "vit.layers.{layer}.attention", given=picture, shards="4KB"),
    "no biases before": Model("ViTModel", SMALL | {"qkv_bias": False}, "layers.{layer}.attention", given=picture),
}

REFUSED = {"fewer layers": (PEERS["classes"], {"num_hidden_layers": 1}, "'num_hidden_layers': expected more than 1")}
