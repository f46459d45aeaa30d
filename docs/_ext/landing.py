"""The picture of the README and the landing page: one head of a real layer, computed by the three packages.

`python docs/_ext/landing.py` writes it. Its words take a colour for light or for dark pages.
"""

import json
import sys
from html import escape
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import torch
from safetensors.numpy import load_file

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

import attn_jax  # noqa: E402
import attn_np  # noqa: E402
import attn_torch  # noqa: E402

EXAMPLE = ROOT / "examples/minilm"
PICTURE = ROOT / "docs/_static/minilm_head.svg"
PACKAGES = {"NumPy": attn_np, "Flax": attn_jax, "PyTorch": attn_torch}
SENTENCE, HEAD, LOOKS, AT = 1, 11, "it", "animal"
WIDTH, ROW, TOP, LEFT, RIGHT, PANEL = 720, 21, 74, 130, 340, 470
INK, ACCENT, FAINT = "#768390", "#2f81f7", 0.02  # of lines and bars, and of words where no style is read
# Of words, on light and on dark pages: one colour can't be read on both.
INKS = {"light": {"ink": "#57606a", "accent": "#0969da"}, "dark": {"ink": "#9198a1", "accent": "#58a6ff"}}


def weights() -> tuple[list[str], dict[str, np.ndarray]]:
    """The words, and by framework the weights `t s` of the head."""
    pieces = json.loads((EXAMPLE / "sentences.json").read_text("utf-8"))[SENTENCE]["tokens"]
    words = [piece for piece in pieces if piece != "[PAD]"]
    x = load_file(EXAMPLE / "activations.safetensors")["hidden_states"][SENTENCE : SENTENCE + 1, : len(words)]
    given = {"NumPy": x, "Flax": jnp.asarray(x), "PyTorch": torch.from_numpy(x)}
    found = {}
    for name, package in PACKAGES.items():
        layer = package.load_pretrained(EXAMPLE, layer=5)
        with torch.no_grad():
            found[name] = np.asarray(layer(given[name], return_weights=True)[1])[0, HEAD]
    return words, found


INKED, ACCENTED = f'class="ink" fill="{INK}"', f'class="accent" fill="{ACCENT}"'


def style() -> str:
    """The colours of words by theme."""
    light, dark = (" ".join(f".{name} {{ fill: {c} }}" for name, c in inks.items()) for inks in INKS.values())
    return f"<style>{light} @media (prefers-color-scheme: dark) {{ {dark} }}</style>"


def words_at(x: float, anchor: str, words: list[str], marked: str) -> list[str]:
    out = []
    for i, word in enumerate(words):
        ink = f'{ACCENTED} font-weight="700"' if word == marked else INKED
        out.append(f'<text x="{x}" y="{TOP + i * ROW + 5}" text-anchor="{anchor}" {ink}>{escape(word)}</text>')
    return out


def draw(words: list[str], found: dict[str, np.ndarray]) -> str:
    """The picture as SVG: a line from each word to the words that it looks at, as wide as its weight."""
    p, query, key = found["NumPy"], words.index(LOOKS), words.index(AT)
    parts = []
    for t in sorted(range(len(words)), key=lambda t: t == query):
        colour, strength = (ACCENT, 1.0) if t == query else (INK, 0.45)
        for s in range(len(words)):
            if p[t, s] > FAINT:
                ends = f'x1="{LEFT + 8}" y1="{TOP + t * ROW}" x2="{RIGHT - 8}" y2="{TOP + s * ROW}"'
                line = f'stroke="{colour}" stroke-opacity="{strength}" stroke-width="{8 * p[t, s]:.2f}"'
                parts.append(f"<line {ends} {line}/>")
    parts += words_at(LEFT, "end", words, LOOKS) + words_at(RIGHT, "start", words, AT)
    for x, anchor, title in ((LEFT, "end", "each word"), (RIGHT, "start", "looks at")):
        parts.append(f'<text x="{x}" y="{TOP - 30}" text-anchor="{anchor}" {INKED} font-size="12">{title}</text>')
    where = f"head {HEAD} of the last layer"
    parts.append(f'<text x="{PANEL}" y="{TOP + 64}" {INKED} font-size="12">{where}</text>')
    looks, at = (f'<tspan {ACCENTED} font-weight="700">{word}</tspan>' for word in (LOOKS, AT))
    parts.append(f'<text x="{PANEL}" y="{TOP + 94}" {INKED}>how much {looks} looks at {at}</text>')
    for i, (name, each) in enumerate(found.items()):
        y, weight = TOP + 128 + 30 * i, each[query, key]
        parts.append(f'<text x="{PANEL}" y="{y}" {INKED}>{name}</text>')
        box = f'x="{PANEL + 70}" y="{y - 11}" width="{120 * weight:.1f}" height="13" rx="3"'
        parts.append(f'<rect {box} fill="{ACCENT}"/>')
        parts.append(f'<text x="{PANEL + 164}" y="{y}" {INKED}>{weight:.5f}</text>')
    label = f"One head of a real layer: {LOOKS} looks at {AT}, by the same number in NumPy, Flax and PyTorch"
    height = TOP + len(words) * ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="system-ui, sans-serif" font-size="14">\n{style()}\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(*weights()), "utf-8")
