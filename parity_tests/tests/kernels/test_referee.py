"""The referee for kernels: right ones pass with any promise, wrong ones are seen, broken ones get a clear verdict."""

import json
from functools import partial

import pytest
from typer.testing import CliRunner

import attn_np
from parity_tests import KernelError, Limits, assert_kernel
from parity_tests.kernels.drawing import allowed, specs
from parity_tests.kernels.likes import ATTEND, LIKES, like_of
from parity_tests.kernels.referee import judge_kernel
from parity_tests.kernels.specs import case_of, lines
from parity_tests.tests.kernels import own_kernels as own

TAKES = ("causal", "window", "softcap", "bias", "scale", "grouped", "value width", "unequal lengths")
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
    assert judge_kernel(kernel, "attend", DENSE | said, cases=30).agrees
    assert not judge_kernel(kernel, "attend", DENSE, cases=30).agrees


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


def test_nan_behind_the_lengths():
    limits = {"dtypes": ("float32",), "options": ("lengths", "unequal lengths"), "lse": False, "keys": (1, 100)}
    assert judge_kernel(own.reads_behind, "attend", limits, cases=40).agrees
    verdict = judge_kernel(own.reads_behind, "attend", limits | {"unread": ("padding",)}, cases=40)
    assert "got nan" in str(verdict)


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


def test_a_snippet_shows_views_as_the_kernel_got_them():
    """A kernel that reads views as if their rows were packed; in NumPy and in PyTorch."""
    for kernel, framework in ((own.packed_reads, "numpy"), (own.packed_reads_torch, "torch")):
        limits = {"dtypes": ("float32",), "options": (), "lse": False, "forward_only": True}
        verdict = judge_kernel(kernel, "attend", limits, framework=framework, cases=40)
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
        assert len(lines(spec)) <= 14
        case_of(spec, narrow)
    assert len(found) == 40


def test_edges_are_asked():
    asked = [spec for spec, _ in zip(specs(ATTEND, ATTEND.limits), range(400), strict=False)]
    lengths = {spec.t for spec in asked} | {spec.s for spec in asked}
    assert {0, 1, 15, 16, 17} <= lengths
    assert any(spec.t < spec.s for spec in asked)
    assert any(spec.t > spec.s for spec in asked)
    assert set().union(*(spec.options for spec in asked)) == set(ATTEND.takes)


@pytest.mark.parametrize(
    "given, words",
    [
        ({"corner": "middle"}, "Limits: expected corner of top-left, bottom-right, got 'middle'"),
        ({"options": ("causality",)}, "Limits: expected options of"),
        ({"head_dim": 3}, "limits: expected fields of"),
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
