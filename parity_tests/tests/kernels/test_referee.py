"""The referee for kernels: right ones pass with any promise, wrong ones are seen, broken ones get a clear verdict."""

import inspect
import json
import re
from collections import Counter
from functools import partial
from itertools import islice

import numpy as np
import pytest
from typer.testing import CliRunner

import attn_np
from parity_tests import KernelError, Limits, assert_kernel
from parity_tests.kernels.arithmetic import CLASSES, classes_of
from parity_tests.kernels.calling import Answer, Kernel, call
from parity_tests.kernels.drawing import allowed, specs
from parity_tests.kernels.judging import differences, expected
from parity_tests.kernels.likes import ATTEND, LIKES, like_of
from parity_tests.kernels.referee import Referee, judge_kernel, not_asked, sizes_of
from parity_tests.kernels.specs import Spec, case_of, lines
from parity_tests.tests.kernels import own_kernels as own

TAKES = ("causal", "window", "softcap", "bias", "scale", "grouped", "value width", "unequal lengths")
# Parameters that every case has or that change how a result is computed, and not what it is.
OF_COMPUTATION = ("rule", "implementation", "tape", "form", "chunk_size", "return_weights")
DENSE = {"options": TAKES, "dtypes": ("float32",)}


more = partial(pytest.param, marks=pytest.mark.left_out)


def test_right_kernel_agrees():
    verdict = assert_kernel(attn_np.attend, "attend", cases=40)
    assert verdict.agrees
    assert {name: str(held) for name, held in verdict.classes.items()} == {"float64": "float64", "float32": "float32"}
    assert "gradients (not taken)" in str(verdict)


@pytest.mark.parametrize(
    "promise, said",
    [
        more("interleaved", {"head_map": "interleaved"}),
        more("scale 1", {"default_scale": 1.0}),
        more("cap before scale", {"order": ("cap", "scale", "bias")}),
        ("top-left", {"corner": "top-left"}),
        more("count", {"window": "count"}),
        ("nan rows", {"empty_rows": "nan", "keys": (1, 100)}),
        more("mean rows", {"empty_rows": "mean", "keys": (1, 100)}),
        ("base 2", {"lse_base": "2"}),
        more("lse b t h", {"lse_layout": "bth"}),
    ],
)
def test_a_promise_passes_where_it_is_said_and_fails_where_it_is_not(promise, said):
    kernel = partial(own.attention, promise=promise)
    assert judge_kernel(kernel, "attend", DENSE | said, cases=40).agrees
    assert not judge_kernel(kernel, "attend", DENSE, cases=80).agrees


@pytest.mark.parametrize(
    "kernel, words",
    [
        (own.raises, "it raises RuntimeError: lengths must be even, not 1"),
        (own.other_shape, "y: expected the shape"),
        (own.other_type, "y: expected float32, got float64"),
        (own.no_array, "y: expected an array, got list"),
        (own.hangs, "it does not return within 1 seconds"),
        (own.crashes, "its process ends with status 3"),
        (own.writes, "it writes into its input q"),
        (own.other_bits, "y: a second call returns other bits"),
        (own.unwritten, "the output differs: got nan"),
    ],
)
def test_broken_kernels_get_a_clear_verdict_and_the_run_goes_on(kernel, words):
    limits = {"dtypes": ("float32",), "options": ("unequal lengths",), "lse": False}
    verdict = judge_kernel(kernel, "attend", limits, cases=13, call_seconds=1.0)
    assert words in str(verdict)
    assert sum(verdict.cases.values()) > 1


@pytest.mark.parametrize(
    "limits, words",
    [
        ({"options": ()}, 'got one array; if it is not returned, say "lse": false in limits'),
        ({"options": ("causal",), "lse": False}, "if it has no causal, name the options that it has in limits"),
    ],
)
def test_a_kernel_that_lacks_something_is_told_what_to_say(limits, words):
    def bare(q, k, v, return_lse=False):
        return own.attention(q, k, v)[0] if return_lse else own.attention(q, k, v)

    assert words in str(judge_kernel(bare, "attend", {"dtypes": ("float32",)} | limits, cases=20))


@pytest.mark.parametrize(
    "limits",
    [
        {"queries": (7, 7), "keys": (9, 9), "options": ()},
        {"groups": (4, 4), "heads": (4, 4), "options": ()},
        {"dtypes": ()},
    ],
)
def test_limits_that_leave_no_case_end_the_run(limits):
    assert not list(specs(ATTEND, ATTEND.limits.but(**limits)))


def test_a_run_without_a_case_says_so():
    verdict = judge_kernel(attn_np.attend, "attend", {"dtypes": ()})
    assert not verdict.agrees
    assert "attend as attend: not judged\n  no case was judged: the limits leave none" in str(verdict)


@pytest.mark.parametrize(
    "backward, words",
    [(own.no_gradients, "no gradient of k"), (own.none_backward, "backward: expected gradients in order or by")],
)
def test_a_backward_pass_that_returns_nothing_is_a_broken_promise(backward, words):
    limits = {"dtypes": ("float32",), "options": (), "lse": False}
    verdict = judge_kernel(own.attention, "attend", limits, backward=backward, cases=3)
    assert words in str(verdict)


def test_what_wraps_a_function_is_sent_by_its_name():
    """As `jax.jit` and `jax.custom_vjp` make it, alone and in a function that is sent by value."""
    limits = {"dtypes": ("float32",), "options": (), "lse": False}
    for kernel in (own.wrapped, partial(own.wrapped, scale=None), lambda q, k, v: own.wrapped(q, k, v)):
        assert judge_kernel(kernel, "attend", limits, cases=2).agrees


def test_some_sizes_alone():
    limits = ATTEND.limits.but(head_dims={"only": [16, 64]}, value_dims=None)
    widths = {spec.d for spec in islice(specs(ATTEND, limits), 60)}
    assert widths == {16, 64}


def test_hidden_keys_are_never_read():
    """Zero weights times what is hidden are NaN there, and a bias of -inf hides like a mask."""
    limits = {"dtypes": ("float32",), "options": ("mask", "causal"), "lse": False, "keys": (1, 100)}
    hidden = limits | {"unread": ("hidden",)}
    assert judge_kernel(own.masked, "attend", limits, cases=24).agrees
    assert "got nan" in str(judge_kernel(own.masked, "attend", hidden, cases=24, seconds=8.0))
    assert judge_kernel(attn_np.attend, "attend", hidden | {"options": ("bias", "mask", "pattern")}, cases=24).agrees


@pytest.mark.parametrize("bias, holds", [("b1ts", ""), ("11ts", "-inf"), ("ts", "-inf"), ("1h1s", "large")])
def test_biases_for_many_scores_at_once(bias, holds):
    """Of a bias with axes of 1 the gradient is the sum; planted: that of one place."""
    spec = Spec(b=2, t=5, s=4, h=2, g=2, bias=bias, bias_holds=holds, grads=True)
    limits = Limits(lse=False)
    want = expected(spec, limits, CLASSES[1])[0]
    shape = {name: x.shape for name, x in want.items()}["dbias"]
    assert shape == tuple(1 if axis == "1" else getattr(spec, axis) for axis in bias)
    kernel = Kernel(attn_np.attend, ATTEND, ATTEND.limits.but(lse=False), "numpy", own.backward)
    answer = call(kernel, spec, {})
    assert not differences(spec, kernel.limits, answer, CLASSES[1])
    if "1" in bias:
        answer.results["dbias"] = answer.results["dbias"] / 2
        assert [x.name for x in differences(spec, kernel.limits, answer, CLASSES[1])] == ["dbias"]


def test_nan_behind_the_lengths():
    limits = {"dtypes": ("float32",), "options": ("lengths", "unequal lengths"), "lse": False, "keys": (1, 100)}
    assert judge_kernel(own.reads_behind, "attend", limits, cases=40).agrees
    verdict = judge_kernel(own.reads_behind, "attend", limits | {"unread": ("padding",)}, cases=40)
    assert "got nan" in str(verdict)
    assert ", in no class up to " in str(verdict)


@pytest.mark.parametrize(
    "kind, mistake",
    [
        ("dense", "causality aligned at the other corner"),
        more("dense", "running maximum starts at a finite number"),
        more("packed", "offset of causality from the whole buffer"),
        ("paged", "page table not read"),  # several mistakes give its smallest cases
        ("recurrent", "gradient of the last state ignored"),
    ],
)
def test_cause_and_snippet(kind, mistake):
    kernel, backward = (partial(f, mistake=mistake) for f in (own.of_simulated, own.of_simulated_backward))
    graded = backward if "gradient" in mistake else None
    with pytest.raises(KernelError) as error:
        assert_kernel(kernel, own.OF_KIND[kind], backward=graded, cases=150)
    verdict = error.value.verdict
    assert verdict.cause == mistake
    smallest = verdict.smallest
    assert smallest is not None
    assert smallest.spec.h <= 2
    assert (smallest.spec.b, smallest.spec.dv) == (1, 1)
    assert max(smallest.spec.t, smallest.spec.s) <= 2 * 8
    code = verdict.code.split("\n")
    assert len(code) <= 15
    printed = []
    exec(verdict.code, {"f": kernel, "backward": backward, "print": printed.append})
    assert f"{float(printed[0]):.6g}" in code[-1]
    assert any(f"{difference.want:.6g}" in code[-1] for difference in smallest.differences)


def test_without_a_cause_the_verdict_says_what_was_tried():
    limits = {"dtypes": ("float32",), "options": (), "lse": False}
    verdict = judge_kernel(partial(own.times, 1.01), "attend", limits, "float32", cases=6)
    assert verdict.cause == ""
    assert re.search(r"  cause: none of \d\d known mistakes gives these numbers\n", str(verdict))
    assert re.search(r"error/bound [\d.e+]+ \(float32\);", str(verdict))


def test_a_kernel_that_raises_is_told_which_limits_leave_that_out():
    limits = {"dtypes": ("float32",), "options": ("grouped",), "lse": False}
    verdict = judge_kernel(own.ungrouped, "attend", limits, cases=20)
    assert '  if the kernel does not take this: limits without grouped in "options"\n' in str(verdict)
    plain = {"dtypes": ("float32",), "options": ()}
    verdict = judge_kernel(own.without_backward, "scaled_dot_product_attention", plain, cases=20)
    assert '  if the kernel does not take this: limits with "forward_only": true\n' in str(verdict)


def test_a_snippet_imports_what_was_named():
    """A `functools.partial` does not know its own name."""
    limits = {"dtypes": ("float32",), "options": (), "lse": False}
    name = f"{own.__name__}:doubled"
    verdict = judge_kernel(own.doubled, "attend", limits, cases=6, name=name)
    assert str(verdict).startswith("doubled as attend: differs")
    assert f"from {own.__name__} import doubled" in verdict.code
    printed = []
    exec(verdict.code, {"print": printed.append})
    assert f"# {float(printed[0]):.6g}; right" in verdict.code
    assert judge_kernel(own.doubled, "attend", limits, cases=6, name="mine").name == "mine"


def test_a_snippet_shows_views_as_the_kernel_got_them():
    """A kernel that reads views as if their rows were packed; in NumPy and in PyTorch."""
    for kernel, framework in ((own.packed_reads, "numpy"), (own.packed_reads_torch, "torch")):
        limits = {"dtypes": ("float32",), "options": (), "lse": False, "forward_only": True}
        verdict = judge_kernel(kernel, "attend", limits, framework=framework, cases=12)
        assert verdict.smallest is not None
        assert verdict.smallest.spec.strided
        printed = []
        exec(verdict.code, {"print": printed.append})
        assert f"# {float(printed[0]):.6g}; right" in verdict.code


def test_arithmetic_fails_what_is_wider():
    kernel = partial(own.of_simulated, arithmetic=3)
    limits = {"forward_only": True, "options": ("causal",)}
    wide = judge_kernel(kernel, own.SIMULATED, limits, cases=60)
    assert str(wide.classes["float32"]) == "TF32 products, float32 sums"
    assert not judge_kernel(kernel, own.SIMULATED, limits, "narrowest", cases=60).agrees
    with pytest.raises(KernelError):
        assert_kernel(kernel, own.SIMULATED, limits, "float32", cases=60)


def test_functions_that_no_module_has():
    scale = 2.0

    def kernel(q, k, v):
        return own.attention(q, scale * k, v)

    limits = {"dtypes": ("float32",), "options": (), "lse": False}
    assert judge_kernel(lambda q, k, v: own.attention(q, k, v), "attend", limits, cases=6).agrees
    assert not judge_kernel(kernel, "attend", limits, cases=6).agrees


@pytest.mark.parametrize("name", LIKES)
def test_what_a_kernel_does_not_take_is_never_asked(name):
    like = like_of(name)
    narrow = like.limits.but(head_dims=(128, 128), heads=(1, 4), queries=(1, 70), batch=1)
    found = [spec for spec, _ in zip(specs(like, narrow), range(40), strict=False)]
    for spec in found:
        assert allowed(spec, like, narrow)
        assert spec.d == 128
        assert spec.h <= 4
        assert spec.b == 1
        assert spec.options <= set(like.takes)
        assert not any(set(pair) <= spec.options for pair in narrow.apart)
        assert len(lines(spec, narrow)) <= 14
        case_of(spec, narrow)
    assert len(found) == 40


def test_edges_are_asked():
    asked = [spec for spec, _ in zip(specs(ATTEND, ATTEND.limits), range(400), strict=False)]
    lengths = {spec.t for spec in asked} | {spec.s for spec in asked}
    assert {0, 1, 15, 16, 17} <= lengths
    assert any(spec.t < spec.s for spec in asked)
    assert any(spec.t > spec.s for spec in asked)
    assert set().union(*(spec.options for spec in asked)) == set(ATTEND.takes)


@pytest.mark.parametrize("name", LIKES)
def test_lengths_beyond_a_block_and_wide_heads_are_asked(name):
    like = like_of(name)
    found = [
        sizes_of(spec) for spec, _ in zip(specs(like, like.limits), range(48 * len(like.limits.dtypes)), strict=False)
    ]
    most = {size: max(each[size] for each in found) for size in found[0]}
    assert like.limits.block >= 64
    assert most["keys"] > like.limits.block
    assert most["queries"] == like.limits.queries.most or most["queries"] > like.limits.block
    assert most["head_dims"] >= 64


@pytest.mark.parametrize("kernel, like", [(own.forgets, "recur"), (own.not_rescaled, "attend"), (own.halved, "attend")])
def test_mistakes_of_large_cases_are_seen(kernel, like):
    limits = {"dtypes": ("float64",), "options": ("gate",), "lse": False, "groups": 1, "keys": (1, 10**6)}
    verdict = judge_kernel(kernel, like, limits, cases=12)
    assert "differs: got" in str(verdict)


def test_the_verdict_says_up_to_where_it_asked():
    limits = {"dtypes": ("float32",), "options": (), "lse": False, "head_dims": (8, 16), "value_dims": None}
    said = judge_kernel(own.attention, "attend", limits, cases=4).not_asked
    assert {"queries beyond 65", "keys beyond 65", "gradients (not taken)"} <= set(said)
    assert not any("widths" in words for words in said)


def test_parameters_that_no_case_passes_are_listed():
    for name, f in (("attend", attn_np.attend), ("recur", attn_np.recur)):
        like = like_of(name)
        passed = {*like.inputs, *like.packs, *like.unasked, *(like.lse[1] if like.lse else ()), *OF_COMPUTATION}
        passed |= {parameter for given in like.options.values() for parameter in given}
        assert {*inspect.signature(f).parameters} - passed == set(), name
        assert all(
            any(f"{parameter}=" in words for words in not_asked(like, like.limits, Counter(), {}))
            for parameter in like.unasked
        )


def test_numbers_without_a_bound_are_not_counted_as_judged():
    """Gradients at scores of -20,000: products of 16 bits may overflow there, and the verdict says so."""
    spec = Spec(dtype="float16", t=2, s=2, d=16, dv=16, style="scores further below 0", grads=True)
    limits = Limits(dtypes=("float16",))
    answer = Answer({name: np.zeros(x.shape) for name, x in expected(spec, limits, CLASSES[-1])[0].items()})
    referee = Referee(Kernel(own.attention, ATTEND, limits, "numpy"), None)
    referee.judge(spec, answer)
    without = sum(np.isinf(x).sum() for x in expected(spec, limits, CLASSES[-1])[1].values())
    assert 0 < without == referee.verdict.unjudged["float16"].total()
    assert referee.verdict.numbers["float16"] == sum(x.size for x in answer.results.values()) - without
    assert "numbers without a bound, not judged: " in str(referee.verdict)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_output_has_a_bound_whatever_the_scores(dtype):
    """An average lies among the values; NaN is a finding."""
    spec = Spec(dtype=dtype, t=2, s=2, style="scores further below 0")
    limits = Limits(dtypes=(dtype,))
    want, bound = expected(spec, limits, classes_of(dtype)[-1])
    assert np.isfinite(bound["y"]).all()
    assert np.isfinite(bound["lse"]).all()
    assert differences(spec, limits, Answer({"y": np.full_like(want["y"], np.nan)}), classes_of(dtype)[-1])


def test_limits_from_json_are_those_of_python():
    lists = {"apart": [["unequal lengths", "causal"]], "dtypes": ["float32"], "head_dims": {"only": [16, 32]}}
    tuples = {"apart": (("unequal lengths", "causal"),), "dtypes": ("float32",), "head_dims": {"only": (16, 32)}}
    limits = Limits().but(**lists)
    assert limits == Limits().but(**tuples)
    hash(limits)


@pytest.mark.parametrize(
    "given, words",
    [
        ({"corner": "middle"}, "Limits: expected corner of top-left, bottom-right, got 'middle'"),
        ({"options": ("causality",)}, "Limits: expected options of"),
        ({"head_dim": 3}, "limits: expected fields of"),
        ({"head_dims": {"largest": 64}}, "limits: expected head_dims with least, most, multiple or only, got largest"),
        ({"order": ("scale", "cap")}, "Limits: expected an order of scale, cap and bias"),
    ],
)
def test_limits_that_there_are_none_of(given, words):
    with pytest.raises(ValueError, match=words):
        Limits().but(**given)


def test_names_that_there_are_none_of():
    with pytest.raises(ValueError, match="like: expected one of attend"):
        assert_kernel(attn_np.attend, "attention")
    with pytest.raises(ValueError, match="arithmetic: expected one of float64"):
        assert_kernel(attn_np.attend, "attend", arithmetic="float31")


def test_fixture(attn_parity_kernel):
    verdict = attn_parity_kernel(attn_np.attend, "attend", {"dtypes": ("float32",)}, cases=3)
    assert verdict.cases["float32"] == 3
    with pytest.raises(pytest.fail.Exception, match="differs"):
        attn_parity_kernel(own.other_type, "attend", DENSE, cases=3)


def test_command():
    from parity_tests.commands.app import app

    limits = json.dumps({"dtypes": ["float32"], "options": ["causal"], "lse": False})
    given = ["kernel", "attn_np:attend", "--like", "attend", "--limits", limits, "--cases", "4"]
    found = CliRunner().invoke(app, given)
    assert found.exit_code == 0
    assert "attend as attend: agrees" in found.output
    given = ["kernel", "parity_tests.tests.kernels.own_kernels:other_type", "--limits", limits, "--cases", "4"]
    found = CliRunner().invoke(app, given)
    assert found.exit_code == 1
    assert "expected float32, got float64" in found.output
