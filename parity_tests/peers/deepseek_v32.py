"""DeepSeek-V3.2 and GLM-5: an indexer that rotates halves or neighbours, of fewer keys than there are, and of all."""

from typing import Any

from parity_tests.peers import Model
from parity_tests.peers.deepseek_v3 import LONGER, OWN
from parity_tests.peers.llama import AT

# So many heads that hardly any key has a score of 0, which several have where no head finds a key positive: of equal
# scores the library chooses any.
INDEXED: dict[str, Any] = OWN | {"index_n_heads": 23, "index_head_dim": 8, "index_topk": 2}

PEERS = {
    "latent": Model("DeepseekV32ForCausalLM", INDEXED | {"rope_parameters": LONGER}, AT),
    "all keys": Model("DeepseekV32ForCausalLM", INDEXED | {"index_topk": 64, "attention_bias": True}, AT, layers=(1,)),
    "neighbours": Model("GlmMoeDsaForCausalLM", INDEXED, AT),
}
