"""Multi-head attention from `torch.nn.Linear`, and how it takes weights from a file of ours.

The layers of this library hold their weights as arrays shaped for `einsum`, or in modules of their own with
`projections="modules"`. A module of yours that has four `nn.Linear`s, as most code has, computes the same: the layout
`torch_linear` has its names, in both directions.

Run it: `python examples/torch_linear_module.py`.
"""

import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import attn_torch
from attn_np.contract.mha import Config


class LinearAttentionModule(nn.Module):
    """Multi-head attention with an `nn.Linear` for each projection.

    Args:
        config: of a MultiHeadAttention that is not causal and has no window and no softcap.
        dtype: of the parameters.
    """

    def __init__(self, config: Config, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        n = config.sizes()
        self.config = config
        self.q_proj = nn.Linear(n["d"], n["h"] * n["k"], bias=config.use_bias, dtype=dtype)
        self.k_proj = nn.Linear(n["i"], n["h"] * n["k"], bias=config.use_bias, dtype=dtype)
        self.v_proj = nn.Linear(n["j"], n["h"] * n["v"], bias=config.use_bias, dtype=dtype)
        self.out_proj = nn.Linear(n["h"] * n["v"], n["d"], bias=config.use_bias, dtype=dtype)

    def forward(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, *, mask: Tensor | None = None
    ) -> Tensor:
        key = query if key is None else key
        value = key if value is None else value
        # b t (h k) -> b h t k
        q, k, v = (
            proj(x).unflatten(-1, (self.config.num_heads, -1)).transpose(1, 2)
            for proj, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        context = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.config.scale)
        return self.out_proj(context.transpose(1, 2).flatten(-2))


def main() -> None:
    """Carry one layer's weights over to the module and back, and show that nothing changes."""
    layer = attn_torch.build("mha", seed=1, dtype="float64", d_model=48, num_heads=4, key_dim=20)
    module = LinearAttentionModule(layer.config, torch.float64)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "module.safetensors"
        attn_torch.save(layer, file, layout="torch_linear")
        module.load_state_dict(load_file(file))

        query, key = torch.randn(2, 7, 48, dtype=torch.float64), torch.randn(2, 9, 20, dtype=torch.float64)
        mask = torch.rand(2, 1, 7, 9) > 0.3
        mask[..., 0] = True
        difference = (module(query, key, mask=mask) - layer(query, key, mask=mask)).abs().max()
        print(f"largest difference of the outputs: {difference:.1e}")

        save_file(module.state_dict(), file)
        back = attn_torch.load(file, layout="torch_linear", variant="mha", num_heads=4)
        same = all(torch.equal(x, back.state_dict()[name]) for name, x in layer.state_dict().items())
        print(f"read back: {back.config}, the same bits: {same}")


if __name__ == "__main__":
    main()
