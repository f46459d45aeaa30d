"""Mistakes that stand in mla's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import at

expanded, absorbed = (at("mla.py", "mla", example) for example in ("expanded", "absorbed"))
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
)
