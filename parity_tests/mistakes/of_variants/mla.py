"""Mistakes that stand in mla's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import at

expanded, absorbed = (at("mla.py", "mla", example) for example in ("expanded", "absorbed"))
indexed = at("mla.py", "mla", "indexed")
MUTANTS = (
    absorbed(
        "latent attention scaled by the width of the latent",
        "the scale is 1/sqrt(nope_dim + rope_dim) in either form",
        "call.attend(q, k, v, scale=c.score_scale())",
        "call.attend(q, k, v, scale=c.score_scale() if c.scale or not c.absorbed else q.shape[-1] ** -0.5)",
    ),
    expanded(
        "shared key not turned",
        "turn the shared key by its position before it is kept",
        "k_rot=rotate(k_rot, cos, sin, c.rope_layout)",
        "k_rot=k_rot",
    ),
    expanded(
        "latent not normed",
        "norm the latent (RMS, with a weight) before keys and values are made of it",
        "latent=rms_norm(kv_down, self.w_kv_norm, c.norm_eps)",
        "latent=kv_down",
    ),
    absorbed(
        "latent normed with another eps",
        "take eps as the weights were trained with it, 1e-6 in DeepSeek's models",
        "latent=rms_norm(kv_down, self.w_kv_norm, c.norm_eps)",
        "latent=rms_norm(kv_down, self.w_kv_norm, c.norm_eps / 2)",
    ),
    absorbed(
        "absorbed queries without their turned part",
        "compare the turned parts too: scores are q_nope w_uk c + q_rot k_rot",
        "q = concatenate([q_absorbed, q_rot], -1)",
        "q = concatenate([q_absorbed, 0.0 * q_rot], -1)",
    ),
    expanded(
        "turned part of the queries taken from the front",
        "the first nope_dim numbers of a query stay, the last rope_dim turn",
        'q_nope, q_rot = q[..., : sizes["q"]], rotate(q[..., sizes["q"] :], cos, sin, c.rope_layout)',
        'q_nope, q_rot = q[..., sizes["y"] :], rotate(q[..., : sizes["y"]], cos, sin, c.rope_layout)',
    ),
    indexed(
        "indexer without relu",
        "what a head of the indexer finds counts only where it is positive",
        'maximum(einsum("btrm,bsm->btrs", q, k), 0.0)',
        'einsum("btrm,bsm->btrs", q, k)',
        file="attention/chosen.py",
    ),
    indexed(
        "heads of the indexer counted alike",
        "multiply what each head of the indexer finds by the weight that the query gives it, of either sign",
        'einsum("btr,btrs->bts", w,',
        'einsum("btr,btrs->bts", 0.0 * w + 1.0,',
        file="attention/chosen.py",
    ),
    indexed(
        "indexer chooses among later keys too",
        "choose among the keys that the query sees: causality would hide the others, and fewer would be seen",
        "arange(s, q) >= 0 if allowed is None else allowed, (q.shape[0], t, s))",
        "arange(s, q) >= 0, (q.shape[0], t, s))",
        file="attention/chosen.py",
    ),
    indexed(
        "queries of the indexer not turned",
        "turn the first rope_dim numbers of the indexer's queries by their positions, as of its key",
        'index_q = rotate(linear("bte,erm->btrm", q_latent, w_q, None), cos, sin, layout)',
        'index_q = linear("bte,erm->btrm", q_latent, w_q, None)',
    ),
    indexed(
        "indexer turns the pairs of the other layout",
        "DeepSeek-V3.2's indexer turns halves although its attention turns neighbours; GLM-5's turns neighbours",
        "layout, step = c.index_rope_layout, call.step",
        'layout, step = "half", call.step',
    ),
    indexed(
        "key of the indexer normed without its mean",
        "the norm of the indexer's key is a LayerNorm with weight and bias, not an RMSNorm",
        "layer_norm(index_k, self.w_index_norm, self.b_index_norm, c.index_norm_eps)",
        "rms_norm(index_k, self.w_index_norm, c.index_norm_eps) + self.b_index_norm",
    ),
    indexed(
        "bias of the indexer's norm left out",
        "the norm of the indexer's key has a bias",
        "layer_norm(index_k, self.w_index_norm, self.b_index_norm, c.index_norm_eps)",
        "layer_norm(index_k, self.w_index_norm, None, c.index_norm_eps)",
    ),
    indexed(
        "indexer reads the input in place of the queries' latent",
        "the indexer's queries are made of the normed latent of the queries",
        'linear("bte,erm->btrm", q_latent, w_q, None)',
        'linear("bte,erm->btrm", query[..., : q_latent.shape[-1]], w_q, None)',
    ),
)
