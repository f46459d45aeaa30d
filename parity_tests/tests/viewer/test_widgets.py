"""The widgets of the lessons: they show what attn_np computes, a keyboard is enough, and their numbers can be read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attn_np
from parity_tests.tests.house.test_docs import ROOT, course, extension
from parity_tests.tests.viewer.browser import Browser

widgets = extension("widgets")
MOST_BYTES = 60_000
ROOT_OF = "document.querySelector('.widget')"
CONTRAST = """(() => {
    const light = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((x) => x / 255)
        .map((x) => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
        .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
    return Math.min(21, ...[...document.querySelectorAll("[data-depth]:not(.widget-gone)")].map((cell) => {
        const look = getComputedStyle(cell);
        const [low, high] = [light(look.color), light(look.backgroundColor)].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    }));
})()"""


def opened(tab: Browser, folder: Path, name: str, **options: Any) -> None:
    """A page that has one widget and the style of the site."""
    style = (ROOT / "docs" / "_static" / "style.css").as_uri()
    head = f'<meta charset="utf-8"><link rel="stylesheet" href="{style}">'
    body = widgets.html(name, widgets.FOLDER.as_uri())
    (folder / "page.html").write_text(f'<!doctype html>{head}<body data-theme="auto">{body}', "utf-8")
    tab.open(folder / "page.html", **options)
    assert not tab.errors


def numbers(tab: Browser, **state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state of the widget, with some of it set, and the numbers that it then shows."""
    tab.run(f"Object.assign({ROOT_OF}.state, {json.dumps(state)}); {ROOT_OF}.change()")
    return tab.run(f"[{ROOT_OF}.state, {ROOT_OF}.numbers]")


def same(found: Any, wanted: Any, terms: int) -> bool:
    """Whether numbers agree but for the roundings of so many operations on numbers of this size."""
    wanted = np.asarray(wanted)
    return bool(
        np.abs(np.asarray(found) - wanted).max() <= terms * np.finfo(np.float64).eps * max(1, np.abs(wanted).max())
    )


def test_lessons_name_widgets_that_exist() -> None:
    """Each widget stands in one lesson, below its picture."""
    named = [name for path in course.lessons() for name in widgets.MARKER.findall(path.read_text("utf-8"))]
    assert sorted(named) == widgets.names()
    with pytest.raises(ValueError, match=r"expected one of .* got sofmax; add sofmax\.js"):
        widgets.with_widgets("<!-- widget: sofmax -->\n")


def test_widgets_are_small() -> None:
    assert sum(path.stat().st_size for path in widgets.FOLDER.iterdir()) <= MOST_BYTES


def test_a_marker_is_a_comment_until_the_site_is_built() -> None:
    """Notebooks have no trace of it."""
    text = "a\n\n<!-- widget: softmax -->\n\nb\n"
    assert "widget" not in course.as_markdown(text, course.lessons()[0])
    assert '<div class="widget" data-widget="softmax"></div>' in widgets.with_widgets(text)


@pytest.mark.parametrize("name", widgets.names())
def test_a_widget_can_be_read_and_used(tab: Browser, name: str, tmp_path: Path) -> None:
    """In light and dark: a contrast of 4.5 to 1, no wider than a small window, names for what can be changed."""
    for dark in (False, True):
        opened(tab, tmp_path, name, width=400, dark=dark)
        assert tab.run(CONTRAST) >= 4.5
        assert tab.run("document.documentElement.scrollWidth") <= 400
    grounds = f"[...{ROOT_OF}.querySelectorAll('[data-depth]')].map((cell) => cell.style.background)"
    before = tab.run(grounds)
    tab.run("document.body.dataset.theme = 'light'")  # which differs from the system's
    after = tab.run(f"new Promise((done) => setTimeout(done)).then(() => {grounds})")
    assert all(old != new or not old for old, new in zip(before, after, strict=True))
    assert tab.run(CONTRAST) >= 4.5
    nodes = tab.ask("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "slider"}
    parts = [node for node in nodes if node.get("role", {}).get("value") in roles]
    assert parts
    assert all(node["name"]["value"] for node in parts)
    assert any(node.get("role", {}).get("value") == "status" for node in nodes)
    assert all(url.startswith("file:") for url in tab.fetched)
    assert not tab.errors


def test_arrow_keys_move_a_slider(tab: Browser, tmp_path: Path) -> None:
    opened(tab, tmp_path, "softmax")
    before = tab.run(f"{ROOT_OF}.numbers.weights")
    tab.run(f"{ROOT_OF}.querySelector('input').focus()")
    tab.press("ArrowLeft", 37)
    state, after = tab.run(f"[{ROOT_OF}.state, {ROOT_OF}.numbers.weights]")
    assert state["temperature"] < 1
    assert after[0] > before[0]
    shown = tab.run(f"[...{ROOT_OF}.querySelectorAll('.widget-bars td:nth-child(2)')].map((cell) => cell.textContent)")
    assert shown == [f"{p:.2f}" for p in after]


def test_softmax(tab: Browser, tmp_path: Path) -> None:
    opened(tab, tmp_path, "softmax")
    for scores, temperature in (([2, 1.5, 0, -1], 1), ([4, -4, 3.5, 0.5], 0.05), ([4, -4, 3.5, 0.5], 50)):
        _, found = numbers(tab, scores=scores, temperature=temperature)
        # Each score has a rounding of its own size, which exp turns into one of the weight.
        rounds = 8 + np.abs(scores).max() / temperature
        assert same(found["weights"], attn_np.softmax(np.array(scores) / temperature), rounds)


def test_mask(tab: Browser, tmp_path: Path) -> None:
    opened(tab, tmp_path, "mask")
    rng = np.random.default_rng(0)
    for allowed in (np.tri(6, dtype=bool), rng.random((6, 6)) < 0.5, np.zeros((6, 6), bool)):
        state, found = numbers(tab, allowed=allowed.tolist())
        assert same(found["weights"], attn_np.softmax(np.array(state["scores"]), allowed), 16)
    assert np.array_equal(state["scores"], np.random.default_rng(0).normal(size=(6, 6)).round(1))


def test_a_key_flips_an_entry_of_a_mask(tab: Browser, tmp_path: Path) -> None:
    """Arrow keys walk over the map, of which a tab stops at one entry."""
    opened(tab, tmp_path, "mask")
    assert tab.run(f"{ROOT_OF}.querySelectorAll('table [tabindex=\"0\"]').length") == 1
    tab.run(f"{ROOT_OF}.querySelector('table button').focus()")
    tab.press("ArrowRight", 39)
    assert tab.run("document.activeElement.ariaLabel") == "query 0, key 1: hidden"
    tab.run("document.activeElement.click()")
    state, found = tab.run(f"[{ROOT_OF}.state, {ROOT_OF}.numbers]")
    assert state["allowed"][0][:3] == [True, True, False]
    assert tab.run("document.activeElement.textContent") == f"{found['weights'][0][1]:.2f}"


def test_query(tab: Browser, tmp_path: Path) -> None:
    opened(tab, tmp_path, "query")
    for query, length in (([0.9, 0.8], 1), ([-1.4, 0.35], 8), ([0.0, 0.0], 3)):
        state, found = numbers(tab, query=query, length=length)
        keys, values = np.array(state["keys"]), np.array(state["values"], float)
        wanted, weights = attended(length * np.array([query], float), keys, values, scale=1.0)
        assert same(found["answer"], wanted[0], 40)
        assert same(found["weights"], weights[0], 40)


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """The context and the weights of one head."""
    y, weights = attn_np.attend(*(x[None, :, None] for x in (q, k, v)), return_weights=True, **options)
    return y[0, :, 0], weights[0, 0]


def test_a_query_is_dragged(tab: Browser, tmp_path: Path) -> None:
    opened(tab, tmp_path, "query")
    box = tab.run(f"{ROOT_OF}.querySelector('svg').getBoundingClientRect().toJSON()")
    # The plane goes from -1.5 to 1.5 in both directions.
    at = {"x": box["x"] + box["width"] / 3, "y": box["y"] + box["height"] / 3}
    tab.ask("Input.dispatchMouseEvent", type="mousePressed", button="left", clickCount=1, **at)
    tab.ask("Input.dispatchMouseEvent", type="mouseReleased", button="left", clickCount=1, **at)
    assert tab.run(f"{ROOT_OF}.state.query") == [-0.5, 0.5]
    assert tab.run(f"{ROOT_OF}.querySelector('input').value") == "-0.5"


def test_turn(tab: Browser, tmp_path: Path) -> None:
    opened(tab, tmp_path, "turn")
    products = []
    for t, s, degrees in ((2, 0, 30), (17, 15, 30), (3, 24, 85)):
        state, found = numbers(tab, t=t, s=s, degrees=degrees)
        angles = np.radians(degrees) * np.array([[t], [s]])
        pairs = np.array([[state["query"], state["key"]]])
        q, k = attn_np.rotate(pairs, np.cos(angles), np.sin(angles))[0]
        # An angle of some turns has a rounding of its own size.
        rounds = 8 + np.abs(angles).max()
        assert same(found["q"], q, rounds)
        assert same(found["k"], k, rounds)
        assert same(found["product"], q @ k, 4 * rounds)
        products.append(found["product"])
    assert same(products[0], products[1], 4 * rounds)  # the distance alone counts


def test_cache(tab: Browser, tmp_path: Path) -> None:
    """The answers of the steps are those of causal attention over the whole text."""
    opened(tab, tmp_path, "cache")
    for t in range(6):
        state, found = numbers(tab, written=t + 1)
        y, weights = attended(*(np.array(state[name], float) for name in "qkv"), causal=True)
        assert same(found["answer"], y[t], 32)
        assert same(found["weights"], weights[t, : t + 1], 32)
        assert (found["kept"], found["again"]) == (3 * (t + 1), sum(3 * n for n in range(1, t + 2)))
    latent = {"num_heads": 32, "kv_rank": 512, "nope_dim": 128, "rope_dim": 64, "value_head_dim": 128}
    build: Any = attn_np.build  # the name of the variant is a string here
    heads = {"32 heads": 32, "8 groups": 8, "1 group": 1}
    layers = {name: ("gqa", {"num_heads": 32, "num_kv_heads": n, "head_dim": 128}) for name, n in heads.items()}
    for keeps, (variant, fields) in (layers | {"latent": ("mla", latent)}).items():
        cache = build(variant, d_model=8, causal=True, dtype="float16", **fields).init_cache(1, 6)
        assert numbers(tab, written=6, keeps=keeps)[1]["bytes"] == 6 * sum(
            x[0, 0].nbytes for x in cache.arrays.values()
        )


def test_flash(tab: Browser, tmp_path: Path) -> None:
    """After each block the answer is attention to the keys that were read."""
    opened(tab, tmp_path, "flash")
    for size in (1, 2, 3, 8):
        for read in range(1, -(-8 // size) + 1):
            state, found = numbers(tab, size=size, read=read)
            z, v = (np.array(state[name], float)[: size * read] for name in ("scores", "values"))
            y, _ = attended(np.ones((1, 1)), z[:, None], v[:, None], scale=1.0)
            assert same(found["answer"], y[0, 0], 64)
            assert same(np.array(found["weights"])[: len(z)] / found["total"], attn_np.softmax(z), 64)
            assert same(found["weighted"] / found["total"], found["answer"], 1)
            assert found["top"] == z.max()


def test_pattern(tab: Browser, tmp_path: Path) -> None:
    opened(tab, tmp_path, "pattern")
    names = tab.run(f"[...{ROOT_OF}.querySelectorAll('[role=group] button')].map((each) => each.textContent)")
    t, s = np.arange(16)[:, None], np.arange(16)
    some = attn_np.patterns
    wide = some.Window(6, 6).allows(t, s) & some.Dilated(3).allows(t, s)
    wanted = {"window": some.Window(2, 2).allows(t, s), "dilated": wide, "chunks": some.Chunks(4).allows(t, s)}
    wanted["window, global"] = wanted["window"] | (t == 0) | (s == 0)
    for i, name in enumerate(names[:4]):
        tab.run(f"{ROOT_OF}.querySelectorAll('[role=group] button')[{i}].click()")
        for layers in (1, 2, 5):
            state, found = numbers(tab, layers=layers)
            assert np.array_equal(state["allowed"], wanted[name])
            reach = np.linalg.matrix_power(wanted[name].astype(int), layers) > 0
            assert np.array_equal(found["reach"], reach)
            assert (found["pairs"], found["reached"]) == (wanted[name].sum(), reach.sum())


def test_heads(tab: Browser, tmp_path: Path) -> None:
    opened(tab, tmp_path, "heads")
    for before, first in ((20, 20), (3, 11), (0, 0)):
        _, found = numbers(tab, before=before, first=first)
        asks = [before * np.eye(5, k=-1), first * np.eye(5)[[0] * 5]]
        for weights, q in zip(found["weights"], [*asks, asks[0] + asks[1]], strict=True):
            assert same(weights, attended(q, np.eye(5), np.eye(5))[1], 64)


def test_state(tab: Browser, tmp_path: Path) -> None:
    opened(tab, tmp_path, "state")
    for alpha, beta in ((1, None), (0.7, None), (1, 1), (0.7, 1), (0.35, 0.6)):
        state, found = numbers(tab, alpha=alpha, beta=beta, written=3)
        k, v = (np.array(state[name], float)[None, :, None] for name in ("keys", "values"))
        decay = np.full((1, 3, 1), float(alpha))
        options = {"rule": "gated", "decay": decay}
        if beta is not None:
            options = {"rule": "gated_delta", "decay": decay, "beta": np.full((1, 3, 1), float(beta))}
        _, last = attn_np.recur(k, k, v, scale=1.0, **options)
        assert same(found["state"], last[0, 0], 64)
        assert same(found["reads"], np.array(state["keys"])[:2] @ last[0, 0], 64)
