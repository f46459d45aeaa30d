"""What names of the field are here: variants, fields of one, a few lines around a function, or nothing, and why."""

import difflib
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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
    here(
        "multi-head attention, MHA, Transformer attention, vanilla attention, BERT, cross-attention, "
        "encoder-decoder attention",
        "mha",
    ),
    here("self-attention", "self_attention"),
    here("masked self-attention, causal attention, GPT, GPT-2, decoder attention", "mha", causal=True),
    here("grouped-query attention, GQA", "gqa", num_kv_heads=2),
    here("multi-query attention, MQA", "mqa"),
    here("multi-head latent attention, latent attention, MLA, DeepSeek-V2, DeepSeek-V3", "mla"),
    here("Llama, Mistral, Qwen2, Phi, GPT-NeoX", "decoder"),
    here("Qwen3, QK-norm of decoders", "decoder", norm="rms"),
    here("Hunyuan, QK-norm after RoPE", "decoder", "docs/norms.md", norm="rms", norm_position="after_rotation"),
    here("nanochat", "decoder", norm="rms", norm_position="after_rotation", norm_weight=None),
    here(
        "BitNet, sub-LN, Magneto, EVA-02, norm before the output projection",
        "decoder",
        "or `qk_norm`: docs/norms.md",
        context_norm="rms",
        context_norm_over="all",
        context_norm_weight="own",
    ),
    here("nGPT, normalised Transformer", "ngpt"),
    here("Gemma 2, logit softcapping", "decoder", softcap=50.0),
    here("gpt-oss, learned attention sinks", "decoder", sinks=True),
    here("Qwen3-Next attention", "decoder", gate=True),
    here("gated attention", "gated"),
    here("Forgetting Transformer, FoX, forget gate", "forgetting"),
    here("additive attention, Bahdanau attention, concat attention", "additive"),
    here("Luong attention, multiplicative attention, global attention", "luong"),
    here("RNN encoder-decoder, encoder-decoder, seq2seq with attention", "seq2seq"),
    here("GRU", "gru"),
    here("rotary position embedding, RoPE", "rotary", "or `rotate`"),
    here("xPos, length-extrapolatable", words="`rotate(..., xpos=512)`"),
    here("YaRN, NTK-aware scaling, LongRoPE", "rotary", "and its factors", rope_scaling="yarn"),
    here("M-RoPE", "rotary", "sections are pairs of each axis", rope_sections=(1, 1), max_positions=64),
    here(
        "2-D RoPE, axial RoPE",
        "rotary",
        "of each axis its dimensions",
        head_dim=64,
        rope_axes=(32, 32),
        max_positions=64,
    ),
    here("ALiBi", "alibi", "or `terms.Slopes`"),
    here("KERPLE, FIRE, Sandwich", words="a term of one's own: docs/terms.md"),
    here("T5 bias, T5, relative position buckets", "t5_bias", "or `terms.Table`"),
    here("Shaw relative positions", "shaw"),
    here("Transformer-XL, relative multi-head attention", "transformer_xl"),
    here("Conformer, relative positions of speech encoders", "transformer_xl"),
    here("Music Transformer, relative global attention", "shaw", causal=True, use_values=False),
    here("NoPE, iRoPE, no positions", "decoder", rope_base=None),
    here("DeBERTa, disentangled attention", "disentangled"),
    here("CoPE, contextual position encoding", "cope"),
    here("Swin, shifted windows, window attention", "swin"),
    here("Swin V2, log-spaced continuous position bias", "swin", version=2),
    here("BEiT, BEiT v2, Data2Vec-vision, relative position bias on a grid, 2-D relative bias", "grid_bias"),
    here("axial attention", "axial"),
    here("sliding window attention, local attention, banded attention", "sliding_window"),
    here("Longformer", "longformer"),
    here("BigBird", "bigbird", "a graph of one's own for each head as `mask=` of `attend`, `b h t s`"),
    here("sparse Transformer, strided attention, dilated attention", "dilated"),
    here("Longnet segments, block-diagonal attention", "segments"),
    here("block sparse attention, MoBA", "block_sparse"),
    here("chunked attention, Llama 4", "chunked", "or `decoder` with `chunk_size=`"),
    here("prefix LM, UniLM", "prefix"),
    here(
        "packed documents, sequence packing, varlen",
        words="`documents=` in calls of layers with a state and of `recur`; in attention `segments` or "
        "`patterns.Documents`: docs/patterns.md",
    ),
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
    here("differential attention with a scalar lambda", "differential", lambda_form="layer"),
    here("talking heads", "talking_heads"),
    here("cosine attention, L2 QK-norm", "qk_norm", norm="l2"),
    here("linear attention, linear Transformer, fast weights", "linear"),
    here("multi-scale retention", "retention"),
    here("RetNet", "retnet"),
    here("Lightning Attention, MiniMax", "lightning"),
    here("gated linear attention, GLA", "gla"),
    here("DeltaNet, delta rule", "delta"),
    here("Gated DeltaNet, Qwen3-Next linear attention", "gated_delta"),
    here("Kimi delta attention, KDA, Kimi Linear, Kimi", "kda"),
    here(
        "Mamba-2, SSD, state space duality",
        "mamba2",
        'or `recur(C, B, x, rule="gated", scale=1.0, beta=dt, decay=exp(dt A))`',
        conv_size=4,
    ),
    here("slot attention", words=IN_LINES),
    here(
        "Perceiver, attention pooling, PMA, Q-Former, latent queries",
        "mha",
        "called with the latents, once for each row of the batch, as the query; `key_dim=` of the input",
    ),
    here("Linformer", words=IN_LINES),
    here("Set Transformer, ISAB, Luna", words=IN_LINES),
    here(
        "performer, FAVOR+, positive random features",
        "linear",
        "set `w_features` to redraw them: docs/names.md",
        feature_map="exp",
        num_features=256,
    ),
    here("Based, ReBased, Hedgehog, Taylor features", "linear", "with `feature_map=` of one's own"),
    here("HGRN2", words=IN_LINES),
    here("mLSTM, xLSTM", words=IN_LINES),
    here("RWKV-5, RWKV-6, Finch", words=IN_LINES),
    here("DeltaProduct", words=IN_LINES),
    here("external attention", words=IN_LINES),
    here("RWKV-7, Goose, DPLR", words=IN_LINES),
    here("Comba", words='`recur(rule="gated_delta", erase_key=)`'),
    here("RWKV-4, AFT, attention-free Transformer", words=IN_LINES),
    missing(
        "Mamba, S6, Mamba-1, S4, S5, H3, Hyena, Griffin, Hawk, RG-LRU",
        "its state has no keys and queries as Mamba-2's has, `mamba2`",
    ),
    missing("sLSTM", "its next state is no linear function of the one before"),
    here("gated slot attention, GSA, ABC", words=IN_LINES),
    missing("log-linear attention", "a hierarchy of states, one for each power of 2"),
    here("DeepSeek sparse attention, DSA, lightning indexer, DeepSeek-V3.2, GLM-5", "dsa", "`mla` with `index_keys=`"),
    here("NSA, native sparse attention", words=IN_LINES),
    here("Doge, dynamic mask attention", words=IN_LINES),
    here("Reformer, LSH attention", words=IN_LINES),
    here("top-k attention, explicit sparse Transformer", words=IN_LINES),
    here("Nystromformer, Nystrom attention", words=IN_LINES),
    here("cosFormer", words=IN_LINES),
    here("joint attention, MM-DiT, Stable Diffusion 3, SD3", "joint"),
    here("Stable Diffusion 3.5, SD3.5, AuraFlow, joint attention with QK-norm", "joint", norm="rms"),
    here(
        "FLUX, FLUX.1, double-stream block, Qwen-Image, joint attention with RoPE",
        "joint",
        "positions of both streams: docs/names.md",
        head_dim=128,
        norm="rms",
        rope_base=10000.0,
        rope_axes=(16, 56, 56),
        max_positions=4096,
    ),
    here(
        "cross-layer attention, CLA, KV sharing, YOCO, Gemma 3n, Gemma 4",
        "decoder",
        "called with another layer's keys: docs/decoding.md",
        shared_kv=True,
    ),
    here("CoAtNet, relative attention of pictures", "grid_bias", prefix_tokens=0),
    here("XCiT, XCA, cross-covariance attention", words=IN_LINES),
    here("LeViT, SAM, MViTv2, decomposed relative positions, BoTNet, bottleneck attention", words=IN_LINES),
    here("ReLU attention, squared ReLU, gated attention unit, GAU, softpick", words=IN_LINES),
    here("SelfExtend, dual chunk attention, DCA", words=IN_LINES),
    here("neighborhood attention, NAT", words=IN_LINES),
    here("Routing Transformer", words="a mask for each head from clusters, as for the Reformer: docs/names.md"),
    here("LASER attention", words="the logarithm of `attend` with `exp` of the values"),
    here("Graphormer, pair bias, TUPE, untied positions, gated relative bias, WavLM", words="`bias=` of `attend`"),
    here("IP-Adapter, decoupled cross-attention", words="a second `attend` with the picture's keys, added"),
    here("tensor product attention, TPA, MFA", words="projections of one's own before `attend`"),
    here("value residual, ResFormer", words="values mixed as you like before `attend`"),
    here("U-Net cross-attention, Stable Diffusion, SpatialTransformer", "mha", "with `key_dim=` of the text"),
    here("class attention, CaiT", "mha", "called with the class token as the query"),
    here(
        "spatial reduction attention, SRA, PVT, SegFormer, pooling attention",
        "mha",
        "called with pooled positions as the key",
    ),
    here("DETR, positions in queries and keys alone", "mha", "called as `layer(x + position, x + position, x)`"),
    here("padding, key padding mask, attention mask", words="`mask=`, True = may attend: docs/conventions.md, Masks"),
    here("masked attention, Mask2Former", "mha", "with a `mask=` from the layer before"),
    here("Flamingo, gated cross-attention", "mha", "called with the picture as the key, times tanh of a gate"),
    here("TimeSformer, divided attention, ViViT", "mha", "one along time and one along space"),
    here("pointer network", "additive", "called with `return_weights=True`: the weights are the answer"),
    here("key/value cache, KV cache, incremental decoding", words="`init_cache` and `step`: docs/decoding.md"),
    here("paged attention, PagedAttention, vLLM, block tables", words="`attend_paged`: docs/decoding.md"),
    here("flash decoding, split keys, cascade attention", words="parts with `return_lse=True`, joined by `merge`"),
    here("speculative decoding", words="`crop` of a cache: docs/decoding.md"),
    here("tree attention", words="`mask=` of each token's ancestors"),
    here("LoRA, adapters", words='`build(..., projections="modules")`: docs/modules.md'),
    missing(
        "location-sensitive attention, Tacotron 2, coverage, monotonic attention, MoChA, forward attention",
        "its weights depend on those of the step before; `additive` and `seq2seq` do without",
    ),
    missing(
        "Synthesizer, Fastformer, FNet, MLP-Mixer, gMLP, Involution, LambdaNetworks",
        "no score is of a query and a key",
    ),
    missing("Mega, moving average gated attention", "an exponential moving average stands before its queries and keys"),
    missing("Primer, compressed convolutional attention, CCA, Zaya", "it convolves queries and keys of a softmax"),
    missing("Sinkhorn attention", "it sorts blocks by a permutation that it learns"),
    missing("Compressive Transformer", "it compresses what leaves the memory; `transformer_xl` is without"),
    here("Infini-attention", words=IN_LINES),
    missing("landmark attention", "landmark tokens share a softmax, each of which opens its block"),
    missing("Memorizing Transformer, kNN attention", "it looks keys up in an index"),
    missing("XLNet, two-stream attention", "its scores have a third part, by segments; `transformer_xl` has two"),
    missing("LongT5, transient global attention", "sums of blocks are keys of all; `longformer` is the nearest"),
    missing("H2O, SnapKV, Quest, MInference, cache eviction", "rules of thumb for which keys a cache keeps"),
    missing("TTT, Titans, Atlas, MesaNet", "an optimiser of its own makes its state, not one step of the delta rule"),
    missing("Longhorn", "each channel of the values has a beta of its own"),
    missing("PaTH attention", "a product of Householder-like matrices stands between a query and a key"),
    missing("selective attention", "scores of one head lower those of all heads later"),
    missing("multi-token attention, MTA", "it convolves the scores; `talking_heads` mixes them over heads"),
    missing(
        "Focal attention, BiFormer, CSWin", "regions of a picture are pooled, chosen or striped; `swin` has windows"
    ),
    missing("invariant point attention, IPA, AlphaFold", "its scores hold distances of points in space"),
    missing("GATv2", "a LeakyReLU stands between sum and score; `additive` has tanh there"),
    missing("deformable attention", "it samples values at learned places of a picture, without keys"),
    here("graph attention, GAT", words=IN_LINES),
    missing("product-key memory, memory layers", "a lookup among millions of learned keys"),
    missing("squeeze-and-excitation, CBAM", "a gate for channels: no queries meet keys"),
)


# What libraries call fields of ours, and arguments of `build` that a name beside the fields may mean.
SAME_FIELD = {
    "d_model": ("hidden_size", "embed_dim", "dim", "n_embd", "model_dim", "input_dim", "in_features"),
    "num_heads": ("num_attention_heads", "n_heads", "n_head", "nhead", "heads"),
    "num_kv_heads": ("num_key_value_heads", "n_kv_heads", "kv_heads", "num_query_groups"),
    "head_dim": ("dim_head", "d_head", "d_k", "d_kv"),
    "key_dim": ("kdim",),
    "value_dim": ("vdim",),
    "use_bias": ("bias", "qkv_bias", "attention_bias"),
    "qkv_bias": ("bias", "use_bias", "attention_bias"),
    "causal": ("is_causal", "use_causal_mask"),
    "window": ("sliding_window", "window_size", "attention_window"),
    "dropout": ("dropout_p", "dropout_rate", "attention_dropout", "attn_dropout"),
    "rope_base": ("rope_theta", "rotary_emb_base", "theta"),
    "rotary_dim": ("rope_dim",),
    "rope_axes": ("axes_dims_rope", "axes_dim", "axes_dims", "axes_dim_rope", "rope_axes_dim"),
    "max_positions": ("max_position_embeddings", "max_seq_len", "block_size"),
    "softcap": ("attn_logit_softcapping", "logit_cap"),
}
BUILD_ARGUMENTS = ("seed", "dtype", "device", "projections")
# How many fields an error lists.
LISTED_FIELDS = 8

# Words that tell no two names apart.
COMMON = {"attention", "transformer", "layer", "net", "network", "model", "of", "the", "with", "a", "and"}
SUFFIXES = ("attention", "attn", "layer", "cell", "transformer")


def folded(name: str) -> str:
    """A name in lower case without accents."""
    return "".join(c for c in unicodedata.normalize("NFKD", name.lower()) if not unicodedata.combining(c))


def normalized(name: str) -> str:
    """A name in lower case without accents and what only separates words."""
    return "".join(c for c in folded(name) if c.isalnum())


def stems(name: str) -> set[str]:
    """The normalized name, and what is left of it without a last word such as "attention"."""
    key = normalized(name)
    return {key, *(key.removesuffix(suffix) for suffix in SUFFIXES)} - {""}


def words(name: str) -> set[str]:
    """The words of a name that tell it from others, no numbers."""
    return {word for word in re.findall("[a-z0-9]+", folded(name)) if not word.isdigit()} - COMMON


def called(name: str) -> tuple[Known, ...]:
    """The entries of which this is a name, however it is spelled."""
    wanted = stems(name)
    return tuple(known for known in NAMES if any(wanted & stems(other) for other in known.names))


def holding(text: str) -> tuple[Known, ...]:
    """The entries with a name that holds the text."""
    wanted = normalized(text)
    return tuple(known for known in NAMES if any(wanted in normalized(name) for name in known.names)) if wanted else ()


def like(text: str) -> tuple[Known, ...]:
    """The entries with a name that holds the text; else those that share words with it, first those that share most."""
    if found := holding(text):
        return found
    shared = {i: max(len(words(text) & words(name)) for name in known.names) for i, known in enumerate(NAMES)}
    return tuple(NAMES[i] for i in sorted(shared, key=lambda i: -shared[i]) if shared[i]) or called(text)


def field_meant(name: str, fields: tuple[str, ...]) -> str:
    """What a name that no field of a Config has may mean, as words for the end of an error."""
    ours = next((our for our, theirs in SAME_FIELD.items() if our in fields and name in theirs), None)
    close = [ours] if ours else difflib.get_close_matches(name, (*fields, *BUILD_ARGUMENTS), n=3, cutoff=0.6)
    if close and name not in close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    rest = len(fields) - LISTED_FIELDS
    more = f" and {rest} more, which help of the layer's Config tells" if rest > 0 else ""
    return f"choose one of {', '.join(fields[:LISTED_FIELDS])}{more}"


def meant(name: str, by_class_name: dict[str, str], known: list[str]) -> str:
    """What a name surely means, as words for the end of an error; "" where it is no name of the field.

    Args:
        name: what was asked for.
        by_class_name: class name to variant.
        known: the variants and presets.
    """
    names = {normalized(cls): variant for cls, variant in by_class_name.items()}
    names |= {normalized(one): one for one in known}
    spelled = next((names[stem] for stem in sorted(stems(name), key=len, reverse=True) if stem in names), None)
    if spelled:
        return f"did you mean {spelled!r}?"
    entries = called(name)
    if all(known.variant and not known.fields and not known.words for known in entries):
        likely = " or ".join(repr(known.variant) for known in entries)
        return f"did you mean {likely}?" if likely else ""
    return "here that is " * entries[0].is_here + ", or ".join(known.spelled() for known in entries).replace("`", "")
