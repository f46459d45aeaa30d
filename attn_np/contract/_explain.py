"""Which path a call takes and why: the functions that are paths, and the conditions that choose between them."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from attn_np.contract._attend import why_textbook

# By module within a package and name. No package has all of them.
PATHS = {
    "attention.attend.textbook_attend": "scores, softmax and weighted sum, as defined",
    "attention.attend.run_fast_path": "without forming the weights",
    "attention.far_keys.attend_near_and_far": "keys near the query by distance, those far from it together",
    "attention.row_blocks.attend_in_row_blocks": "a variant's own scores or weights",
    "attention.row_blocks.attend_equal_blocks": "blocks of rows, one after the other",
    "attention.row_blocks.RowBlockCall.run": "a block of rows",
    "attention.row_blocks.attend_in_row_blocks.<locals>.block": "a block of rows",
    "kernels.blocks.blocks_forward": "blocks of queries and keys",
    "kernels.cudnn.attend_with_cudnn": "cuDNN's kernel",
    "kernels.flash.attend": "the kernel of the fast path",
    "kernels.sdpa.attend": "PyTorch's kernel",
    "kernels.sdpa.attend_by_diagonals": "PyTorch's kernel, with a bias by diagonal",
    "kernels.sharded.attend_locally": "each device its own part",
    "kernels.small.attend": "all scores at once, by plain operations",
    "kernels.weigh.WeighingCall.context": "weights in place, block by block",
    "kernels.weigh.attend_by_sigmoid": "weights in place, block by block",
    "kernels.weigh.context_of": "weights in place, block by block",
    "recurrence.rules.chunked_form": "a recurrence chunk by chunk",
    "recurrence.rules.recurrent_form": "a recurrence position by position",
}
# Functions that answer whether something holds, or whose answer has a property that says so.
CONDITIONS = {
    "contract._attend.takes_fast_path": "",
    "kernels.cudnn.cudnn_supports": "",
    "kernels.flash._plan": "has_one_block",
    "kernels.flash.few_scores": "",
    "kernels.flash.fits_one_block": "",
    "kernels.flash.supports_diagonal_bias": "",
    "kernels.sdpa.supports": "",
    "kernels.sdpa.supports_diagonal_bias": "",
    "kernels.sdpa.under_transform": "",
    "kernels.small.has_tangent": "",
}


def explain(call: Callable[..., Any], /, *inputs: Any, **options: Any) -> list[str]:
    """Call a layer or a function, and say by which paths it went and which conditions chose them, in order.

    What `jax.jit` or `torch.compile` has compiled says nothing when it is called again, and neither does a layer that
    has one path only.

    Returns:
        Lines such as "contract._attend.takes_fast_path is False: return_weights" and
        "attention.attend.textbook_attend: scores, softmax and weighted sum, as defined". A condition that is asked of
        several arrays stands there once for each answer.
    """
    lines: list[str] = []

    def watch(frame: FrameType, event: str, answer: object) -> None:
        if event not in ("call", "return"):
            return
        name = f"{frame.f_globals.get('__name__', '').partition('.')[2]}.{frame.f_code.co_qualname}"
        line = f"{name}: {PATHS[name]}" if event == "call" and name in PATHS else ""
        if event == "return" and name in CONDITIONS and answer is not None:  # as where it raises
            part = CONDITIONS[name]
            line = f"{name}{part and '.'}{part} is {getattr(answer, part) if part else answer}"
            if name == "contract._attend.takes_fast_path" and not answer:
                line += f": {' and '.join(why_textbook(**frame.f_locals))}"
        if line and line not in lines:
            lines.append(line)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        call(*inputs, **options)
    finally:
        sys.setprofile(before)
    return lines
