"""Continuous batching: one model decodes requests of different lengths together, and they come and go as they like.

Keys and values lie in pages of four positions, in one pool that all requests share. A request takes pages when it
begins and gives them back when it has ended; the next one writes over what is in them. `python
examples/continuous_batching.py` serves ten requests and compares each with the same model on this request alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, einsum, nn, tensor
from torch.nn.functional import rms_norm

import attn_torch

VOCAB, WIDTH, HEADS, KV_HEADS, HEAD_DIM, PAGE = 50, 32, 4, 2, 8, 4


@dataclass
class Request:
    """A prompt and what is written after it, how many tokens are still to write, and its pages."""

    tokens: list[int]
    left: int
    pages: list[int] = field(default_factory=list)
    cached: int = 0  # how many positions lie in the pages


class Model(nn.Module):
    """Two layers of attention with rotary positions, each added to what came in and normed."""

    def __init__(self) -> None:
        super().__init__()
        sizes: dict[str, Any] = {"num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "dtype": "float64"}
        self.words = nn.Embedding(VOCAB, WIDTH, dtype=torch.float64)
        self.layers = nn.ModuleList(attn_torch.build("decoder", d_model=WIDTH, seed=i, **sizes) for i in range(2))
        self.out = nn.Linear(WIDTH, VOCAB, dtype=torch.float64)

    def forward(self, tokens: Tensor, attend: Callable[[int, Any, Tensor], Tensor]) -> Tensor:
        """The scores of the next token; `attend` says how a layer is called."""
        x = self.words(tokens)
        for i, layer in enumerate(self.layers):
            x = rms_norm(x + attend(i, layer, x), (WIDTH,))
        return self.out(x[:, -1])


def attend_by_pages(
    pools: Tensor, table: Tensor, lengths: Tensor, positions: Tensor, i: int, layer: Any, x: Tensor
) -> Tensor:
    """What layer i returns for new positions, whose keys and values it writes into its pages first; -1 is padding."""
    q, k, v = (einsum("btd,dhk->bthk", x, w) for w in (layer.w_q, layer.w_k, layer.w_v))
    q, k = (attn_torch.rotate(y, positions.clamp(min=0), max_positions=1024) for y in (q, k))
    k_pages, v_pages = (attn_torch.write_pages(pools[i, n], x, table, positions) for n, x in enumerate((k, v)))
    context = attn_torch.attend_paged(q, k_pages, v_pages, table, lengths, causal=True)
    return einsum("bthv,hvo->bto", context, layer.w_o)


@torch.no_grad()
def serve(model: Model, requests: list[Request], num_pages: int) -> int:
    """Write the tokens of all requests; returns how often the model was called."""
    # of each layer its keys and its values
    pools = torch.zeros((len(model.layers), 2, num_pages, PAGE, KV_HEADS, HEAD_DIM), dtype=torch.float64)
    free, waiting, running, calls = list(range(num_pages)), list(requests), list[Request](), 0
    while waiting or running:
        while waiting and (count := -(-(len(waiting[0].tokens) + waiting[0].left) // PAGE)) <= len(free):
            running.append(waiting.pop(0))
            running[-1].pages = [free.pop() for _ in range(count)]
        # Those that begin read their prompts, the others their last token, with padding on the left.
        new = [request.tokens[request.cached :] for request in running]
        t, columns = max(map(len, new)), max(len(request.pages) for request in running)
        table = tensor([request.pages + [-1] * (columns - len(request.pages)) for request in running])
        lengths = tensor([len(request.tokens) for request in running])
        positions = lengths[:, None] - t + torch.arange(t)
        positions = positions.where(positions >= tensor([request.cached for request in running])[:, None], -1)
        tokens = tensor([[0] * (t - len(row)) + row for row in new])
        scores, calls = model(tokens, partial(attend_by_pages, pools, table, lengths, positions)), calls + 1
        for request, token in zip(list(running), scores.argmax(-1).tolist(), strict=True):
            request.cached, request.left = len(request.tokens), request.left - 1
            request.tokens.append(token)
            if not request.left:
                running.remove(request)
                free += request.pages
    return calls


@torch.no_grad()
def alone(model: Model, tokens: list[int], count: int) -> list[int]:
    """The same for one request, by whole passes of the layers."""
    for _ in range(count):
        tokens = [*tokens, int(model(tensor([tokens]), lambda i, layer, x: layer(x)).argmax())]
    return tokens


def main() -> None:
    torch.manual_seed(0)
    model, sizes = Model(), [(3, 9), (11, 2), (1, 14), (6, 6), (8, 1), (2, 5), (13, 7), (4, 4), (5, 12), (7, 3)]
    prompts = [(torch.randint(VOCAB, (length,)).tolist(), left) for length, left in sizes]
    requests = [Request(list(tokens), left) for tokens, left in prompts]
    calls = serve(model, requests, num_pages=12)
    same = sum(request.tokens == alone(model, *prompt) for request, prompt in zip(requests, prompts, strict=True))
    print(f"{sum(left for _, left in sizes)} tokens in {calls} calls; {same} of {len(sizes)} requests as alone")


if __name__ == "__main__":
    main()
