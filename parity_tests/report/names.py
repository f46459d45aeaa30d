"""What names of the field are here: variants, fields of one, a few lines around a function, or nothing, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attn_np.contract._names import normalized


@dataclass(frozen=True)
class Known:
    """A name that people look for.

    Attributes:
        names: how papers, libraries and models call it.
        variant: the variant or preset that it is; or "" where it is none.
        fields: fields of that variant that make it so.
        words: what else a call needs, or, without a variant, what it is made of here, or why it is not here.
        is_here: whether the library has it.
    """

    names: tuple[str, ...]
    variant: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""
    is_here: bool = True

    def spelled(self) -> str:
        """What to write."""
        given = ", ".join([repr(self.variant), *(f"{name}={value!r}" for name, value in self.fields.items())])
        code = f"`build({given})`" if self.variant else ""
        return "; ".join(part for part in (code.replace("'", '"'), self.words) if part)


def here(names: str, variant: str = "", words: str = "", **fields: Any) -> Known:
    return Known(tuple(names.split(", ")), variant, fields, words)


def missing(names: str, why: str) -> Known:
    return Known(tuple(names.split(", ")), words=f"not here: {why}", is_here=False)


IN_LINES = "in a few lines: docs/names.md"
NAMES = (
    here("scaled dot-product attention, SDPA, Hopfield layer, non-local block", "dot_product", "or `attend`"),
    here("multi-head attention, MHA, Transformer attention, cross-attention, encoder-decoder attention", "mha"),
    here("self-attention", "self_attention"),
    here("masked self-attention, causal attention, GPT-2, decoder attention", "mha", causal=True),
    here("grouped-query attention, GQA", "gqa", num_kv_heads=2),
    here("multi-query attention, MQA", "mqa"),
    here("multi-head latent attention, MLA, DeepSeek-V2, DeepSeek-V3", "mla"),
    here("Llama, Mistral, Qwen2, Phi, GPT-NeoX", "decoder"),
    here("Qwen3, QK-norm of decoders", "decoder", norm="rms"),
    here("Gemma 2, logit softcapping", "decoder", softcap=50.0),
    here("gpt-oss, learned attention sinks", "decoder", sinks=True),
    here("Qwen3-Next attention", "decoder", gate=True),
    here("gated attention", "gated"),
    here("Forgetting Transformer, FoX, forget gate", "forgetting"),
    here("additive attention, Bahdanau attention, concat attention", "additive"),
    here("Luong attention, multiplicative attention, global attention", "luong"),
    here("RNN encoder-decoder, seq2seq with attention", "seq2seq"),
    here("GRU", "gru"),
    here("rotary position embedding, RoPE", "rotary", "or `rotate`"),
    here("xPos, length-extrapolatable", words="`rotate(..., xpos=512)`"),
    here("YaRN, NTK-aware scaling, LongRoPE", "rotary", "and its factors", rope_scaling="yarn"),
    here("M-RoPE, 2-D RoPE", "rotary", "sections are pairs of each axis", rope_sections=(1, 1)),
    here("ALiBi", "alibi", "or `terms.Slopes`"),
    here("KERPLE, FIRE, Sandwich", words="a term of one's own: docs/terms.md"),
    here("T5 bias, relative position buckets", "t5_bias", "or `terms.Table`"),
    here("Shaw relative positions", "shaw"),
    here("Transformer-XL, relative multi-head attention", "transformer_xl"),
    here("DeBERTa, disentangled attention", "disentangled"),
    here("CoPE, contextual position encoding", "cope"),
    here("Swin, shifted windows, window attention", "swin"),
    here("axial attention", "axial"),
    here("sliding window attention, local attention, banded attention", "sliding_window"),
    here("Longformer", "longformer"),
    here("BigBird", "bigbird"),
    here("sparse Transformer, strided attention, dilated attention", "dilated"),
    here("Longnet segments, block-diagonal attention", "segments"),
    here("block sparse attention, MoBA", "block_sparse"),
    here("chunked attention, Llama 4", "chunked", "or `decoder` with `chunk_size=`"),
    here("prefix LM, UniLM", "prefix"),
    here("packed documents, sequence packing, varlen", words="`patterns.Documents`, and `recur(documents=)`"),
    here("FlexAttention, score_mod, mask_mod", words="patterns, terms and `softcap=` of `attend`: docs/coming_from.md"),
    here("flash attention, memory-efficient attention", "blockwise", "`attend` does so by itself"),
    here("ring attention, context parallel", "ring", "over devices `parallel.ring_attend`"),
    here("Ulysses", words="`parallel.ulysses_attend`"),
    here("StreamingLLM, attention sinks of the first tokens", words="a window and `patterns.Prefix` for `attend`"),
    here("attention sinks with a score for each head", "sinks"),
    here("off-by-one attention, softmax1, quiet attention", "off_by_one"),
    here("sparsemax", "sparsemax"),
    here("entmax", "entmax_attention"),
    here("hard attention", "hard"),
    here("sigmoid attention", "sigmoid_attention"),
    here("differential attention, DIFF Transformer", "differential"),
    here("talking heads", "talking_heads"),
    here("cosine attention, L2 QK-norm, Swin V2 scores", "qk_norm", norm="l2"),
    here("linear attention, linear Transformer, fast weights", "linear"),
    here("multi-scale retention", "retention"),
    here("RetNet", "retnet"),
    here("Lightning Attention, MiniMax", "lightning"),
    here("gated linear attention, GLA", "gla"),
    here("DeltaNet, delta rule", "delta"),
    here("Gated DeltaNet, Qwen3-Next linear attention", "gated_delta"),
    here("Kimi delta attention, KDA, Kimi Linear", "kda"),
    here("Mamba-2, SSD, state space duality", "mamba2", "or `recur` with a gated rule", conv_size=4),
    here("slot attention", words='`attend(normalize_over="queries")`, and `gru` for the slots'),
    here("Perceiver, attention pooling, PMA, Q-Former, latent queries", "mha", "called with the latents as the query"),
    here("Linformer", words=IN_LINES),
    here("Set Transformer, ISAB, Luna", words=IN_LINES),
    here("performer, FAVOR+, random features", "linear", "with `feature_map=` of one's own; redraw them as you like"),
    here("HGRN2", words=IN_LINES),
    here("mLSTM, xLSTM", words=IN_LINES),
    here("RWKV-5, RWKV-6, Finch", words=IN_LINES),
    here("DeltaProduct", words=IN_LINES),
    here("external attention", words=IN_LINES),
    here("RWKV-7, Goose, DPLR", words=IN_LINES),
    here("Comba", words='`recur(rule="gated_delta", erase_key=)`'),
    missing("RWKV-4, AFT, attention-free Transformer", "it averages values by position, channel by channel"),
    missing("Mamba, S6, Mamba-1, S4, Hyena", "its state has no keys and queries that could be products of matrices"),
    missing("log-linear attention, GSA, ABC", "a hierarchy, or two passes, of states"),
    missing("NSA, native sparse attention, DSA, indexer, Doge", "keys chosen by scores of their own"),
    missing("Reformer, LSH attention", "keys chosen by hashing; its results depend on the hash"),
    missing("Nystromformer, cosFormer", "an approximation of the softmax by means, or by positions in the features"),
    missing("joint attention, MM-DiT, SD3, FLUX", "two streams with one softmax"),
    missing("cross-layer attention, YOCO, shared keys of Gemma 3n", "layers that read another layer's keys"),
    missing("deformable attention", "it samples values at learned places of a picture, without keys"),
    missing("graph attention, GAT", "it attends along the edges of a graph"),
    missing("product-key memory, memory layers", "a lookup among millions of learned keys"),
    missing("squeeze-and-excitation, CBAM", "a gate for channels: no queries meet keys"),
)


def table() -> list[tuple[str, str]]:
    """Names and what they are here, in order of the first name."""
    return sorted(
        ((", ".join(known.names), known.spelled().replace(": docs/names.md", ", below")) for known in NAMES),
        key=lambda row: row[0].lower(),
    )


def like(text: str) -> tuple[Known, ...]:
    """The entries with a name that holds the text, or that the text holds; letters and digits alone count."""
    wanted = normalized(text)
    return tuple(
        known
        for known in NAMES
        if any(
            wanted in normalized(name) or normalized(name) == wanted.removesuffix("attention") for name in known.names
        )
    )
