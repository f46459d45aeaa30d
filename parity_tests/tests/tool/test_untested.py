"""A green verdict names what it does not tell apart: ports with a field off, at its default, halved, doubled, one more.

The ports are our own layers with another value in one field.
"""

import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, replace
from typing import Any

import numpy as np
import pytest

from attn_np import contract
from attn_np.contract import Config
from attn_np.weights._progress import progress
from parity_tests import ParityError, Verdict, assert_parity
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision_of
from parity_tests.judge.candidates import numpy_layer
from parity_tests.judge.cases import Case, draw
from parity_tests.judge.consequences import results_of
from parity_tests.judge.judging import reference
from parity_tests.ports import differences, plan
from parity_tests.ports.alternatives import changed, words
from parity_tests.ports.parity import UntestedError
from parity_tests.ports.untested import LENGTHS, affordable, held_by
from parity_tests.tests.witness import bind_call, signature_of

D = {"d_model": 12, "num_heads": 3}
# By default one in so many ports is judged; with --everything each.
STRIDE = 23


def configs() -> Iterator[tuple[str, str, Config]]:
    """Every example, every variant with its defaults alone, and every preset."""
    for variant in contract.variants():
        for name, config in contract.examples(variant).items():
            yield variant, name, config
    for name in (*contract.variants(), *contract.presets()):
        variant = contract.presets()[name][0] if name in contract.presets() else name
        example = next(iter(contract.examples(variant).values()))
        needed = {n: D.get(n, getattr(example, n)) for n in example.required()}
        yield variant, f"{name} with defaults", contract.config(name, **needed)


def other_configs(config: Config) -> Iterator[tuple[str, Any, Config]]:
    """One field off, at its default, halved, doubled, one more; another word or flag; another entry of a tuple."""
    for entry in fields(config):
        value = getattr(config, entry.name)
        tried = [None, False, True, 0, *words(config).get(entry.name, ())]
        tried += [] if entry.default is MISSING else [entry.default]
        tried += around(value)
        if isinstance(value, tuple):
            tried += [(*value[:i], x, *value[i + 1 :]) for i in range(len(value)) for x in (None, *around(value[i]))]
        seen: list[Any] = [value]
        for other in tried:
            if any(other == x and type(other) is type(x) for x in seen):
                continue
            seen.append(other)
            made = changed(config, {entry.name: other})
            if made is not None and made.shapes().items() <= config.shapes().items():
                yield entry.name, other, made


def around(value: Any) -> list[Any]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return []
    return [value // 2 if isinstance(value, int) else value / 2, 2 * value, value + 1]


def layer_as_port(true: Config, other: Config, whole: bool) -> Callable[..., Any]:
    """Our layer with another config as a function; with the query alone, or all arguments."""
    signature = signature_of(true, whole)

    def port(*args: Any, **named: Any) -> Any:
        given, weights, kind = bind_call(signature, args, named)
        case = Case(other.variant, "", "", kind, given=other)
        result = numpy_layer(case, {name: weights[name] for name in other.shapes()})(**given)
        return result[0] if isinstance(result, tuple) else result

    vars(port)["__signature__"] = signature
    return port


def attn_numpy(variant: str, **fields: Any) -> Callable[..., Any]:
    """Our layer in NumPy as a function of all its arguments."""
    config = contract.config(variant, **D | fields)
    return layer_as_port(config, config, True)


@pytest.fixture
def without_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No mistake is searched: only whether a port is refused counts."""
    for module in (differences, plan):
        explain = module.explain
        monkeypatch.setattr(module, "explain", lambda run, *_, explain=explain, **__: explain(run, causes=False))


def verdict_on(true: Config, other: Config, whole: bool) -> Verdict | None:
    """The verdict; None for a port that is refused, or that refuses the call."""
    try:
        return assert_parity(layer_as_port(true, other, whole), true.variant, true)
    except (ParityError, ValueError, TypeError):
        return None


CONFIGS = [pytest.param(config, id=f"{variant}-{name}") for variant, name, config in configs()]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.usefixtures("without_causes")
def test_a_port_with_another_field_fails_or_is_named(config: Config, request: pytest.FixtureRequest) -> None:
    everything = request.config.getoption("--everything")
    for name, value, other in other_configs(config):
        for whole in (False, True):
            if not everything and zlib.crc32(f"{config}{name}{value}{whole}".encode()) % STRIDE:
                continue
            if other.meaning() == config.meaning():
                continue
            verdict = verdict_on(config, other, whole)
            if verdict is None:
                continue
            named = {field.name: field.alike for field in verdict.untested}
            values = (changed(config, {name: x}) for x in named.get(name, ()))
            same = other.meaning() in [config.meaning() for config in values if config is not None]
            unplayed = name == "dropout" and not any("keep" in t.drawn.inputs for t in verdict.traces.values())
            assert same or unplayed, f"{name}={value!r}, query alone: {not whole}: {verdict}"
            assert unplayed or f"{name}={getattr(config, name)!r} from" in str(verdict)


@pytest.mark.parametrize("config", CONFIGS)
def test_configs_of_one_meaning_are_one_function(config: Config) -> None:
    """What a contract says means the same gives the same numbers, within bounds, or refuses a call."""
    others = [*(other for _, _, other in other_configs(config)), *written_out(config)]
    same = [other for other in dict.fromkeys(others) if other.meaning() == config.meaning()]
    for call, lengths in (("full", {}), ("plain", {"b": 1, "t": 37, "s": 37})) if same else ():
        case = Case(config.variant, "", call, "float64", given=config)
        drawn = draw(case, lengths=lengths)
        outputs, grads = reference(case, drawn, {}, precision_of("float64"))
        for other in same:
            try:
                moved = results_of(replace(case, given=other), held_by(other, drawn))
            except ValueError:  # a limit on positions
                continue
            for name, want in (outputs | grads).items():
                if isinstance(want, ErrArray):
                    assert not (np.abs(moved[name] - want.v) > 2 * want.b).any(), (name, call, other)


def written_out(config: Config) -> Iterator[Config]:
    """The config with one default, that its meaning knows, set by hand."""
    for name, value in {**config.meaning(), **config.sizes()}.items():
        if name in config.fields() and getattr(config, name) is None and value is not None:
            other = changed(config, {name: value})
            if other is not None and other != config:
                yield other


# By hand --------------------------------------------------------------------------------------------------------------


def own(variant: str, config: dict[str, Any], **yours: Any) -> Verdict:
    """Our layer with other fields, a field of None left out, as a port for a config."""
    true = contract.config(variant, **config)
    other = contract.config(variant, **{k: v for k, v in (config | yours).items() if v is not None})
    return assert_parity(layer_as_port(true, other, whole=False), variant, true)


DYNAMIC = {"rope_scaling": "dynamic", "rope_scaling_factor": 4.0, "original_max_positions": 4096}
LLAMA4 = {"temperature_growth": 0.1, "temperature_interval": 8192}


@pytest.mark.parametrize("fields", [{"window": (4095, None)}, {"chunk_size": 8192}, DYNAMIC, LLAMA4])
def test_a_port_without_a_published_size_is_told_by_name(fields: dict[str, Any]) -> None:
    verdict = own("decoder", D | fields, **dict.fromkeys(fields))
    assert {x.name for x in verdict.untested} == {*fields}
    for field in verdict.untested:
        assert field.value == fields[field.name] and None in field.alike
        assert f"{field.name}={field.value!r} from None" in str(verdict)


LONGROPE = {"rope_scaling": "longrope", "short_factor": (1.0, 1.5), "long_factor": (2.0, 6.0)}


@pytest.mark.parametrize("original", [4, 7, 4096])
@pytest.mark.usefixtures("without_causes")
def test_factors_of_a_length_that_is_not_judged_are_told_by_name(original: int) -> None:
    """Those up to the original length, all 1 in a port, and those beyond it; the others are seen."""
    config = D | LONGROPE | {"original_max_positions": original}
    for name, other in (("short_factor", (1.0, 1.0)), ("long_factor", (1.0, 1.5))):
        try:
            verdict = own("decoder", config, **{name: other})
        except ParityError:
            continue
        assert name in {field.name for field in verdict.untested}, (name, str(verdict))
        assert f"{name}={config[name]!r} from" in str(verdict)
        assert name == ("short_factor" if original < 11 else "long_factor")


@pytest.mark.parametrize(
    ("variant", "config", "yours", "cause"),
    [
        ("decoder", {"window": (95, None)}, {"window": None}, "window=None in place of (95, None)"),
        ("decoder", {"chunk_size": 64}, {"chunk_size": 128}, "chunk_size=128 in place of 64"),
        ("t5_bias", {"causal": True}, {"bidirectional": True}, "bidirectional=True in place of False"),
        ("t5_bias", {}, {"max_distance": 1000}, ""),
    ],
)
@pytest.mark.usefixtures("without_causes")
def test_what_acts_at_a_distance_is_judged_there(
    variant: str, config: dict[str, Any], yours: dict[str, Any], cause: str
) -> None:
    with pytest.raises(ParityError, match="shorter ones agree") as caught:
        own(variant, D | config, **yours)
    assert cause in [*(x.name for x in caught.value.finding.causes), ""]
    verdict = own(variant, D | config)
    assert verdict.untested == [] and any("positions" in name for name in verdict.traces)


@pytest.mark.usefixtures("without_causes")
def test_buckets_without_logarithms_are_seen() -> None:
    """All rows of T5's table play a part in some judged sequence."""
    config = contract.config("t5_bias", **D)
    right = layer_as_port(config, config, whole=False)

    def port(params: dict[str, np.ndarray], query: np.ndarray) -> np.ndarray:
        t = query.shape[1]
        distance = np.arange(t)[None, :] - np.arange(t)[:, None]
        bucket = np.minimum(np.abs(distance), 15) + 16 * (distance > 0)
        layer = numpy_layer(Case("t5_bias", "", "", query.dtype.name, given=config), params)
        bias = np.moveaxis(params["w_bias"][bucket], -1, 0)
        off = numpy_layer(
            Case("t5_bias", "", "", query.dtype.name, given=config), {**params, "w_bias": 0 * layer.w_bias}
        )
        return off(query, bias=np.broadcast_to(bias, (len(query), *bias.shape)).astype(query.dtype))

    assert assert_parity(right, config.variant, config).traces["129 positions"]
    with pytest.raises(ParityError, match="shorter ones agree"):
        assert_parity(port, config.variant, config)


@pytest.mark.usefixtures("without_causes")
def test_one_bucket_too_few_far_away_is_seen() -> None:
    """The last row of T5's table is for distances from 91 on."""
    config = contract.config("t5_bias", **D)
    right = layer_as_port(config, config, whole=False)

    def port(params: dict[str, np.ndarray], query: np.ndarray) -> np.ndarray:
        table = params["w_bias"].copy()
        table[[15, 31]] = table[[14, 30]]
        return right({**params, "w_bias": table}, query)

    with pytest.raises(ParityError, match="in a sequence of 129 positions"):
        assert_parity(port, config.variant, config)


def test_a_candidate_may_refuse_the_longer_sequence() -> None:
    config = contract.config("decoder", **D, window=(95, None))
    right = layer_as_port(config, config, whole=False)

    def port(params: dict[str, np.ndarray], query: np.ndarray) -> np.ndarray:
        if query.shape[1] > 64:
            raise RuntimeError("made for 64 positions")
        return right(params, query)

    verdict = assert_parity(port, config.variant, config)
    assert "a sequence of 129 positions not judged: RuntimeError: made for 64 positions" in str(verdict)
    assert [field.name for field in verdict.untested] == ["window"]


def test_strict_makes_an_error_of_what_is_not_told_apart() -> None:
    config = contract.config("decoder", **D, chunk_size=8192)
    with pytest.raises(ParityError, match="chunk_size=8192 from None") as caught:
        assert_parity(layer_as_port(config, config, whole=False), "decoder", config, strict=True)
    assert isinstance(caught.value, UntestedError) and caught.value.verdict.untested
    plain = contract.config("decoder", **D)
    assert assert_parity(layer_as_port(plain, plain, whole=True), "decoder", plain, strict=True).untested == []


def test_sizes_are_those_that_are_asked_for() -> None:
    config = contract.config("mha", **D)
    port = layer_as_port(config, config, whole=True)
    verdict = assert_parity(port, "mha", config, sizes={"t": 8, "s": 16}, batch=4)
    assert {x.drawn.inputs["query"].shape[:2] for x in verdict.traces.values()} == {(4, 8)}
    assert verdict.traces["full"].drawn.inputs["key"].shape[:2] == (4, 16)
    window = contract.config("decoder", **D, window=(95, None))
    port = layer_as_port(window, window, whole=False)
    asked = assert_parity(port, "decoder", window, length=128)
    assert asked.untested == [] and asked.traces["plain"].drawn.inputs["query"].shape[:2] == (2, 128)
    short = assert_parity(port, "decoder", window, length=8)
    assert [x.name for x in short.untested] == ["window"] and len(short.traces) == 1


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"sizes": {"d": 8}}, ValueError, "expected sizes of b, t, s, which mha leaves open, got 'd'"),
        ({"length": 8, "sizes": {"t": 8}}, ValueError, "expected length= or sizes= of t, got both"),
        ({"batch": 0}, ValueError, "expected sizes of at least 1, got 0 for b"),
        ({"length": 8.0}, TypeError, "expected sizes to be ints, got 8.0 for t"),
        ({"sizes": 8}, TypeError, "expected sizes= as a map from axis letters to counts, got int"),
    ],
)
def test_sizes_that_cannot_be_are_refused(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=f"assert_parity: {words}"):
        assert_parity(
            layer_as_port(contract.config("mha", **D), contract.config("mha", **D), True), "mha", **D, **options
        )


def test_a_length_is_that_of_the_keys_too() -> None:
    """Two more, so that the two are told apart; and the verdict says how many there were."""
    layer = attn_numpy("mha")
    verdict = assert_parity(layer, "mha", D, length=9)
    assert "with query, key, value, mask, bias, keep (t=9, s=11)" in str(verdict)
    assert "(t=9, s=4)" in str(assert_parity(layer, "mha", D, length=9, sizes={"s": 4}))


def test_what_a_narrow_head_turns_alike_is_named() -> None:
    """A wider one would tell these lengths in training apart."""
    fields: dict[str, Any] = {"d_model": 24, "num_heads": 4, "rope_base": 5e5, "rope_scaling": "llama3"}
    fields |= {"rope_scaling_factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    fields |= {"original_max_positions": 8192}
    verdict = assert_parity(attn_numpy("decoder", **fields | {"original_max_positions": 4096}), "decoder", fields)
    (found,) = (x for x in verdict.untested if x.name == "original_max_positions")
    assert 4096 in found.alike


def test_progress_is_for_terminals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for terminal, said in ((False, ""), (True, "\rassert_parity: the call plain\x1b[K\r\x1b[K")):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        clock = iter((0.0, 2.0))
        monkeypatch.setattr("attn_np.weights._progress.monotonic", lambda clock=clock: next(clock))
        with progress("assert_parity") as tell:
            tell("the call plain")
        assert capsys.readouterr().err == said


def test_a_table_of_far_distances_is_judged_on_shorter_sequences() -> None:
    """Its gradient is a sum over all pairs for every row: of 512 rows and 257 positions it took minutes."""
    fields = {"d_model": 12, "num_heads": 3, "max_distance": 512, "buckets_per_side": 256}
    assert [n for n in LENGTHS if affordable(contract.config("disentangled", **fields), n)] == [17, 33, 65]
    fields |= {"max_distance": 8, "buckets_per_side": None}
    assert [n for n in LENGTHS if affordable(contract.config("disentangled", **fields), n)] == list(LENGTHS)
