"""CodeGen as `transformers` names it: GPT-J with one projection, whose rows are in four groups.

Each group has the queries of its heads, then their values, then their keys: the model was trained on four devices.
"""

from dataclasses import replace

from attn_np.weights.layouts.gptj import LAYOUT as GPTJ

DECODER = GPTJ.tables["decoder"]
LAYOUT = replace(
    GPTJ,
    origin="transformers: CodeGenModel",
    tables={
        "decoder": replace(
            DECODER,
            rules={
                ("w_q", "w_v", "w_k"): ("attn.qkv_proj.weight", "(m p n k) d -> p d (m n) k"),
                "w_o": DECODER.rules["w_o"],
            },
            constants={"m": 4},
        )
    },
    ignored=("attn.causal_mask", *GPTJ.ignored),
    model_types=("codegen",),
)
