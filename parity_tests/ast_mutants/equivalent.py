"""Survivors that were looked at: why each of these edits changes nothing that is promised."""

from parity_tests.ast_mutants.sources import Key

SEEN = "[(n, type(x), x.shape, x.dtype) for some in given for n, x in some.items() if x is not None]"

# Reason, then the mutants that it holds for: file, function, text before and after, and which of those that read alike.
REVIEWED: tuple[tuple[str, tuple[Key, ...]], ...] = (
    (
        "NumPy's integers compare and print as Python's do.",
        (
            Key("_core.py", "take", "int(tokens.min())", "tokens.min()"),
            Key("_core.py", "take", "int(tokens.max())", "tokens.max()"),
            Key("_decode.py", "opened", "int(length.max())", "length.max()"),
            Key("_decode.py", "opened", "cache.length.tolist()", "cache.length"),
            Key("_rotary.py", "rotation", "int(positions.min())", "positions.min()"),
            Key("_rotary.py", "rotation", "int(positions.max())", "positions.max()"),
        ),
    ),
    (
        "0 times a number is added, or taken away.",
        (
            Key(
                "_decode.py",
                "empty_cache",
                "none[:, None] - 1 + 0 * arange(slots(config, max_length) + SPARE, like)",
                "none[:, None] - 1 - 0 * arange(slots(config, max_length) + SPARE, like)",
            ),
        ),
    ),
    (
        "No sequence has any positions yet: all numbers are 0.",
        (
            Key(
                "_decode.py",
                "empty_cache",
                "Cache(arrays, positions, none, none > 0, max_length)",
                "Cache(arrays, positions, none, none > 1, max_length)",
            ),
        ),
    ),
    (
        "All positions count, in every sequence: one row of True goes as far as one for each.",
        (
            Key(
                "_decode.py",
                "opened",
                "broadcast_to(arange(t, query)[None, :] >= 0, (b, t))",
                "arange(t, query)[None, :] >= 0",
            ),
            Key("_decode.py", "opened", "arange(t, query)[None, :] >= 0", "arange(t, query)[None, :] >= -1"),
        ),
    ),
    (
        "Of two equal numbers either may be taken.",
        (
            Key("_decode.py", "opened", "length < most", "length <= most"),
            Key("_decode.py", "opened", "min(longest + t, room)", "min(room, longest + t)"),
        ),
    ),
    (
        "NumPy's numbers are always known.",
        (Key("_decode.py", "opened", "if known(cache.length): ...", "if True: ..."),),
    ),
    (
        "NumPy writes one slot's entries in their order, so that the last stays; the other trees do not promise it.",
        (Key("_decode.py", "opened", "real & (query_at >= length[:, None] - room)", "real"),),
    ),
    (
        "The letters of axes are single letters.",
        (Key("_decode.py", "opened", "mask.axes.split()", "mask.axes"),),
    ),
    (
        "NumPy selects between 16-bit numbers and NaN without rounding.",
        (
            Key(
                "_decode.py",
                "closed",
                "where(step.lost[:, :, None], float('nan'), upcast(y))",
                "where(step.lost[:, :, None], float('nan'), y)",
            ),
        ),
    ),
    (
        "Of one the first is the last.",
        (
            Key(
                "_decode.py",
                "remember",
                "found[0] if len(found) == 1 else found",
                "found[-1] if len(found) == 1 else found",
            ),
            Key(
                "_decode.py",
                "remember",
                "found[0] if len(found) == 1 else found",
                "found[-1] if len(found) == 1 else found",
                1,
            ),
        ),
    ),
    (
        "NumPy takes any negative size for the one that is left open.",
        (
            Key("_vjp.py", "take_vjp", "tokens.reshape(-1)", "tokens.reshape(-2)"),
            Key("_vjp.py", "take_vjp", "dy.reshape(-1, dy.shape[-1])", "dy.reshape(-2, dy.shape[-1])"),
        ),
    ),
    (
        "The larger of two numbers is so in either order, and the sum of their exponentials too.",
        (
            Key("_core.py", "clip", "np.clip(x, low, high)", "np.clip(low, x, high)"),
            Key(
                "_rotary.py",
                "rotation",
                "clip(at, 0, length - 1)",
                "clip(0, at, length - 1)",
            ),
            Key("_core.py", "softplus", "np.logaddexp(x, 0.0)", "np.logaddexp(0.0, x)"),
            Key("_core.py", "entmax15", "maximum(z, -1.0)", "maximum(-1.0, z)"),
            Key("_core.py", "entmax15", "maximum(k - 1.0, 1.0)", "maximum(1.0, k - 1.0)"),
            Key("_core.py", "entmax15", "maximum(1.0 - apart, 0.0)", "maximum(0.0, 1.0 - apart)"),
            Key("_core.py", "entmax15", "maximum(z - tau, 0.0)", "maximum(0.0, z - tau)"),
        ),
    ),
    (
        "How many tables are kept is not promised.",
        (
            Key("_core.py", "constant", "lru_cache(maxsize=8)", "lru_cache(maxsize=9)"),
            Key("_core.py", "constant", "lru_cache(maxsize=8)", "lru_cache(maxsize=7)"),
            Key("_core.py", "constant", "lru_cache(maxsize=8)", "lru_cache()"),
        ),
    ),
    (
        "Neither 0 nor None asks for a dtype.",
        (
            Key(
                "_core.py",
                "Layer.init_cache",
                "self, batch_size, max_length, *, dtype=None, **sizes",
                "self, batch_size, max_length, *, dtype=0, **sizes",
            ),
        ),
    ),
    (
        "What is real in a step is known without the mask, and `attend` asks by itself who sees whom.",
        (
            Key(
                "gqa.py",
                "GroupedQueryAttention.__call__",
                "sight(tape, mask, n['t'], n['s'], like=query, causal=c.causal, window=c.window, step=step)",
                "sight(tape, mask, n['t'], n['s'], like=query, causal=c.causal, window=c.window)",
            ),
            Key(
                "mha.py",
                "MultiHeadAttention.__call__",
                "sight(tape, mask, n['t'], n['s'], like=query, causal=c.causal, window=c.window, step=step)",
                "sight(tape, mask, n['t'], n['s'], like=query, causal=c.causal, window=c.window)",
            ),
            Key(
                "self_attention.py",
                "SelfAttention.__call__",
                "sight(tape, mask, n['t'], n['t'], like=query, causal=c.causal, window=c.window, step=step)",
                "sight(tape, mask, n['t'], n['t'], like=query, causal=c.causal, window=c.window)",
            ),
            Key(
                "fused_qkv.py",
                "FusedQKVAttention.__call__",
                "sight(tape, mask, n['t'], n['t'], like=query, causal=c.causal, window=c.window, step=step)",
                "sight(tape, mask, n['t'], n['t'], like=query, causal=c.causal, window=c.window)",
            ),
            Key(
                "rotary.py",
                "RotaryAttention.__call__",
                "sight(tape, mask, n['t'], n['t'], like=query, causal=c.causal, window=c.window, step=step)",
                "sight(tape, mask, n['t'], n['t'], like=query, causal=c.causal, window=c.window)",
            ),
        ),
    ),
    (
        "A product with float64 numbers is one of float64 numbers.",
        (
            Key("_rotary.py", "tables", "np.arange(length, dtype=np.float64)", "np.arange(length)"),
            Key("_relative.py", "sinusoids", "np.arange(low, high, dtype=np.float64)", "np.arange(low, high)"),
            Key("_rotary.py", "tables", "np.array(config.frequencies(length))", "config.frequencies(length)"),
        ),
    ),
    (
        "Nothing turns where there is no position, nor at the first.",
        (
            Key(
                "_rotary.py",
                "rotation",
                "max(t, 1) if step is None else step.cache.max_length",
                "t if step is None else step.cache.max_length",
            ),
            Key(
                "_rotary.py",
                "rotation",
                "max(t, 1) if step is None else step.cache.max_length",
                "max(1, t) if step is None else step.cache.max_length",
            ),
            Key(
                "_rotary.py",
                "rotation",
                "max(t, 1) if step is None else step.cache.max_length",
                "max(t, 2) if step is None else step.cache.max_length",
            ),
            Key(
                "_rotary.py",
                "rotation",
                "max(t, 1) if step is None else step.cache.max_length",
                "max(t, 0) if step is None else step.cache.max_length",
            ),
        ),
    ),
    (
        "NumPy's numbers are always known.",
        (
            Key(
                "_rotary.py", "rotation", "concrete(positions) and 0 not in positions.shape", "0 not in positions.shape"
            ),
        ),
    ),
    (
        "Cosines and sines come together or not at all.",
        (
            Key("_rotary.py", "rotate", "cos is None or sin is None", "cos is None and sin is None"),
            Key("_rotary.py", "rotate", "cos is None or sin is None", "sin is None"),
            Key("_rotary.py", "rotate", "cos is None or sin is None", "cos is None"),
        ),
    ),
    (
        "The number beyond the last is the first of a pair, which the step leaves out.",
        (Key("_rotary.py", "rotate", "(..., 1:2 * n:2)", "(..., 1:2 * n + 1:2)"),),
    ),
    (
        "Where all numbers turn nothing is put behind them.",
        (
            Key(
                "_rotary.py",
                "rotate",
                "turned if x.shape[-1] == 2 * n else concatenate([turned, x[..., 2 * n:]], -1)",
                "turned if False else concatenate([turned, x[..., 2 * n:]], -1)",
            ),
            Key("_rotary.py", "rotate", "x.shape[-1] == 2 * n", "x.shape[-1] == 2 / n"),
            Key("_rotary.py", "rotate", "x.shape[-1] == 2 * n", "x.shape[-1] == 2"),
            Key("_rotary.py", "rotate", "x.shape[-1] == 2 * n", "x.shape[-1] == n"),
            Key("_rotary.py", "rotate", "x.shape[-1] == 2 * n", "x.shape[-1] == 1 * n"),
        ),
    ),
    (
        "NumPy repeats an index by itself, over heads and batch rows.",
        (Key("_core.py", "pick", "broadcast_to(index[:, None], (b, h, t, index.shape[-1]))", "index[:, None]"),),
    ),
    (
        "A name is one of two in either order.",
        (Key("_core.py", "widen", "('float16', 'bfloat16')", "('bfloat16', 'float16')"),),
    ),
    (
        "The letters keep one order in both factors and in the product, which is transposed at the end.",
        (
            Key(
                "_core.py",
                "einsum",
                "[x for x in left if x in right and x in out]",
                "[x for x in reversed(list(left)) if x in right and x in out]",
            ),
            Key(
                "_core.py",
                "einsum",
                "[x for x in left if x in right and x not in out]",
                "[x for x in reversed(list(left)) if x in right and x not in out]",
            ),
            Key(
                "_core.py",
                "einsum",
                "[x for x in left if x not in right]",
                "[x for x in reversed(list(left)) if x not in right]",
            ),
            Key(
                "_core.py",
                "einsum",
                "[x for x in right if x not in left]",
                "[x for x in reversed(list(right)) if x not in left]",
            ),
        ),
    ),
    (
        "No string of ours has a letter in one factor alone that the result lacks: both raise.",
        (Key("_core.py", "einsum", "x in right and x not in out", "x not in out"),),
    ),
    (
        "The number of entries is the same in whichever order it is multiplied.",
        (Key("_core.py", "einsum.flat", "[size[x] for x in letters]", "[size[x] for x in reversed(list(letters))]"),),
    ),
    (
        "NumPy computes a 16-bit array with a float32 one in float32, exactly as after widening it.",
        (
            Key("_core.py", "einsum", "upcast(a).transpose", "a.transpose"),
            Key("_core.py", "einsum", "upcast(b).transpose", "b.transpose"),
            Key("_core.py", "rms_norm", "upcast(weight)", "weight"),
            Key("_core.py", "layer_norm", "unit + upcast(bias)", "unit + bias"),
            Key("_vjp.py", "rms_norm_vjp", "upcast(weight)", "weight"),
            Key("_core.py", "linear", "y + upcast(bias)", "y + bias"),
        ),
    ),
    (
        "At 0 both sides give 1 / 2: exp(-0) is 1.",
        (Key("_core.py", "sigmoid", "np.where(x >= 0, 1.0, small)", "np.where(x > 0, 1.0, small)"),),
    ),
    (
        "A row without keys holds -inf alone: it stays so, and its weights 0, whatever is subtracted.",
        (
            Key("_core.py", "softmax", "np.where(top == -np.inf, 0.0, top)", "np.where(top == -np.inf, -1.0, top)"),
            Key("_core.py", "softmax", "np.where(top == -np.inf, 0.0, top)", "np.where(top == -np.inf, 1.0, top)"),
            Key("_core.py", "sparsemax", "np.where(lost, 0.0, top)", "np.where(lost, 1.0, top)"),
            Key("_core.py", "sparsemax", "np.where(lost, 0.0, top)", "np.where(lost, -1.0, top)"),
            Key("_core.py", "sparsemax", "np.where(lost, 0.0, tau)", "np.where(lost, 1.0, tau)"),
            Key("_core.py", "sparsemax", "np.where(lost, 0.0, tau)", "np.where(lost, -1.0, tau)"),
            Key("_core.py", "entmax15", "np.where(lost, 0.0, top)", "np.where(lost, 1.0, top)"),
            Key("_core.py", "entmax15", "np.where(lost, 0.0, top)", "np.where(lost, -1.0, top)"),
        ),
    ),
    (
        "0 divided by anything but 0 is 0.",
        (
            Key("_core.py", "softmax", "np.where(total == 0, 1.0, total)", "np.where(total == 0, 2.0, total)"),
            Key("_core.py", "softmax", "np.where(total == 0, 1.0, total)", "np.where(total == 0, -1.0, total)"),
            Key("_vjp.py", "sparsemax_vjp", "np.where(count == 0, 1, count)", "np.where(count == 0, 2, count)"),
            Key("_vjp.py", "entmax15_vjp", "np.where(size == 0, 1.0, size)", "np.where(size == 0, 2.0, size)"),
            Key("_vjp.py", "entmax15_vjp", "np.where(size == 0, 1.0, size)", "np.where(size == 0, -1.0, size)"),
        ),
    ),
    (
        "Of one axis the first is the last.",
        (Key("_core.py", "sparsemax", "cumsum(zeros((n,), z) + 1.0, 0)", "cumsum(zeros((n,), z) + 1.0, -1)"),),
    ),
    (
        "A score at the threshold weighs 0, with the support or beside it.",
        (
            Key("_core.py", "sparsemax", "np.where(z > tau, z - tau, 0.0)", "np.where(z >= tau, z - tau, 0.0)"),
            Key("_core.py", "entmax15", "np.where(tau <= x, tau, -1.0)", "np.where(tau < x, tau, -1.0)"),
        ),
    ),
    (
        "The threshold is -1 or more, so what lies below weighs nothing, and the largest threshold stays.",
        (
            Key("_core.py", "entmax15", "maximum(z, -1.0)", "maximum(z, -2.0)"),
            Key("_core.py", "entmax15", "np.where(tau <= x, tau, -1.0)", "np.where(tau <= x, tau, -2.0)"),
        ),
    ),
    (
        "`near` is True everywhere until a limit narrows it.",
        (Key("_core.py", "visible", "near & (ahead <= right)", "ahead <= right"),),
    ),
    (
        "The order of the axes that are reduced does not matter.",
        (
            Key(
                "_core.py",
                "seen",
                "(i for i, letter in enumerate(source) if letter not in target)",
                "(i for i, letter in reversed(list(enumerate(source))) if letter not in target)",
            ),
        ),
    ),
    (
        "As many heads as the queries have: every head h is taken from h // 1.",
        (Key("_core.py", "repeat_heads", "x.ndim == 3 or x.shape[2] == q.shape[2]", "x.ndim == 3"),),
    ),
    (
        "Of one entry, all but the last are none.",
        (Key("_core.py", "scan", "y[:, None][:, :0]", "y[:, None][:, :-1]"),),
    ),
    (
        "A layer has one base, which takes one argument.",
        (
            Key("_core.py", "Layer.__init_subclass__", "cls.__orig_bases__[0]", "cls.__orig_bases__[-1]"),
            Key(
                "_core.py",
                "Layer.__init_subclass__",
                "get_args(cls.__orig_bases__[0])[0]",
                "get_args(cls.__orig_bases__[0])[-1]",
            ),
        ),
    ),
    (
        "Each is set by itself: the order does not matter.",
        (
            Key(
                "_core.py",
                "Layer.__init__",
                "for name in declared(type(self)): ...",
                "for name in reversed(list(declared(type(self)))): ...",
            ),
            Key(
                "_core.py",
                "Layer.set_params",
                "for name in self.config.params(): ...",
                "for name in reversed(list(self.config.params())): ...",
            ),
            Key(
                "_core.py",
                "Layer.train",
                "for _, layer in self.walk(): ...",
                "for _, layer in reversed(list(self.walk())): ...",
            ),
            Key(
                "_core.py",
                "Layer.eval",
                "for _, layer in self.walk(): ...",
                "for _, layer in reversed(list(self.walk())): ...",
            ),
            Key(
                "seq2seq.py",
                "AttentionDecoder.run_vjp",
                "for i, part in enumerate(parts): ...",
                "for i, part in reversed(list(enumerate(parts))): ...",
            ),
        ),
    ),
    (
        "What the config has is set to its value a few lines below.",
        (
            Key("_core.py", "Layer.__init__", "if name not in own and name not in children: ...", "if True: ..."),
            Key(
                "_core.py",
                "Layer.__init__",
                "name not in own and name not in children",
                "name not in own or name not in children",
            ),
            Key("_core.py", "Layer.__init__", "name not in own and name not in children", "name not in children"),
            Key("_core.py", "Layer.__init__", "name not in own and name not in children", "name not in own"),
        ),
    ),
    (
        "One layer was built, which is the first and the last.",
        (
            Key(
                "_core.py",
                "Layer.__init__",
                "built if isinstance(child, list) else built[0]",
                "built if isinstance(child, list) else built[-1]",
            ),
        ),
    ),
    (
        "No layer's name ends with an underscore.",
        (Key("_core.py", "Layer.walk", "f'{prefix}.{inner}'.rstrip('.')", "f'{prefix}.{inner}'.rstrip('._')"),),
    ),
    (
        "The shape of NumPy's arrays is a tuple.",
        (Key("_core.py", "spec_of", "tuple(x.shape)", "x.shape"),),
    ),
    (
        "To sum over an axis of size 1 changes no number, and the shape is set afterwards.",
        (Key("_vjp.py", "sum_to", "n == 1 and dy.shape[lead + i] != 1", "n == 1"),),
    ),
    (
        "The order of the axes that are summed over does not matter.",
        (
            Key("_attend.py", "attend_vjp", "np.sum(dcolumn, axis=(0, 2))", "np.sum(dcolumn, axis=(2, 0))"),
            Key(
                "_vjp.py",
                "sum_to",
                "(lead + i for i, n in enumerate(shape) if n == 1 and dy.shape ...",
                "(lead + i for i, n in reversed(list(enumerate(shape))) if n == 1 and dy.shape ...",
            ),
        ),
    ),
    (
        "As many heads as there were: each is the sum of its one copy.",
        (Key("_vjp.py", "repeat_heads_vjp", "heads is None or dx.shape[2] == heads", "heads is None"),),
    ),
    (
        "NumPy's product takes Booleans as 0 and 1 in the dtype of the other factor.",
        (
            Key(
                "_vjp.py",
                "pick_vjp",
                "(np.broadcast_to(index, (b, t, s))[..., None] == np.arange(x.shape[-1])).astype(dy.dtype)",
                "np.broadcast_to(index, (b, t, s))[..., None] == np.arange(x.shape[-1])",
            ),
            Key(
                "_vjp.py",
                "take_vjp",
                "(tokens[:, None] == np.arange(table.shape[0])).astype(dy.dtype)",
                "tokens[:, None] == np.arange(table.shape[0])",
            ),
        ),
    ),
    (
        "A sum of a few terms in another order: within the bound of every order.",
        (
            Key("_vjp.py", "inputs_vjp", "total(dquery, dkey, dvalue)", "total(dkey, dquery, dvalue)"),
            Key("_vjp.py", "inputs_vjp", "total(dquery, dkey, dvalue)", "total(dquery, dvalue, dkey)"),
            Key("_vjp.py", "inputs_vjp", "total(dkey, dvalue)", "total(dvalue, dkey)"),
            Key("_vjp.py", "inputs_vjp", "total(dquery, dkey)", "total(dkey, dquery)"),
            Key("seq2seq.py", "Seq2Seq.vjp", "total(from_source, from_target)", "total(from_target, from_source)"),
        ),
    ),
    (
        "Which seed a loaded layer's generator starts from is not promised, only that it is always the same.",
        (
            Key(
                "_api.py",
                "load",
                "cls(found.config, rng=0, dtype=found.dtype or wanted or 'float32', _values=found.values)",
                "cls(found.config, rng=1, dtype=found.dtype or wanted or 'float32', _values=found.values)",
            ),
            Key(
                "_api.py",
                "load_pretrained",
                "cls(found.config, rng=0, dtype=found.dtype, _values=once(found.values))",
                "cls(found.config, rng=1, dtype=found.dtype, _values=once(found.values))",
            ),
        ),
    ),
    (
        "Values are handed over once to save memory, which `test_pretrained.py` measures.",
        (Key("_api.py", "load_pretrained", "once(found.values)", "found.values"),),
    ),
    (
        "`read` gives the dtype that was wanted where the file has none.",
        (Key("_api.py", "load", "found.dtype or wanted or 'float32'", "found.dtype or 'float32'"),),
    ),
    (
        "Nothing is hidden here: without a mask the letters are not read.",
        (
            Key(
                "dot_product.py",
                "DotProductAttention.__call__",
                "inputs(tape, 'bts', None, query, key, value, step=step)",
                "inputs(tape, 'bts_', None, query, key, value, step=step)",
            ),
        ),
    ),
    (
        "Which axes are reduced does not depend on their order: both are gone from the result.",
        (Key("fused_qkv.py", "only_live", "any_visible('bhts->bsd', allowed)", "any_visible('bths->bsd', allowed)"),),
    ),
    (
        "The gradients of q, k and v are 0 there already, by attend_vjp, and so is their product with the weights.",
        (
            Key("fused_qkv.py", "FusedQKVAttention.vjp", "dx = only_live(dx, tape.get('allowed'))", "pass"),
            Key("fused_qkv.py", "FusedQKVAttention.vjp", "only_live(dx, tape.get('allowed'))", "dx"),
            Key("fused_qkv.py", "FusedQKVAttention.vjp", "tape.get('allowed')", "tape.get('allowed_')"),
        ),
    ),
    (
        "A product or sum with a 16-bit operand is computed in float32: einsum and linear widen what they get.",
        (
            Key("gru.py", "GRULayer.__call__", "upcast(self.w_h)", "self.w_h"),
            Key("gru.py", "GRULayer.__call__", "upcast(self.b_h)", "self.b_h"),
            Key("gru.py", "GRULayer.vjp", "upcast(self.w_h)", "self.w_h"),
            Key("seq2seq.py", "AttentionDecoder.weights", "upcast(layer.w_x)", "layer.w_x"),
            Key("seq2seq.py", "AttentionDecoder.weights", "upcast(self.attention.w_q)", "self.attention.w_q"),
            Key("seq2seq.py", "AttentionDecoder.weights", "upcast(self.attention.w_score)", "self.attention.w_score"),
            Key("seq2seq.py", "AttentionDecoder.weights", "upcast(layer.w_h)", "layer.w_h"),
            Key("seq2seq.py", "AttentionDecoder.weights", "upcast(layer.b_h)", "layer.b_h"),
            Key("seq2seq.py", "Seq2Seq.begin", "upcast(state)", "state"),
            Key("seq2seq.py", "Seq2Seq.begin", "upcast(decoder.w_o)", "decoder.w_o"),
            Key("seq2seq.py", "Seq2Seq.begin", "upcast(decoder.b_o)", "decoder.b_o"),
            Key("seq2seq.py", "Seq2Seq.generate", "upcast(target)", "target"),
            Key("seq2seq.py", "Seq2Seq.generate", "upcast(source)", "source"),
        ),
    ),
    (
        "These names are not read; the tape gets the values by the names that `scan` is told.",
        (
            Key("gru.py", "GRULayer.__call__", "(r, z, n, h)", "(z, r, n, h)"),
            Key("gru.py", "GRULayer.__call__", "(r, z, n, h)", "(r, n, z, h)"),
        ),
    ),
    (
        "The contract makes w_q, w_k and w_score together or not at all, so one of them says it for all three.",
        (
            Key(
                "luong.py",
                "LuongAttention.__call__",
                "self.w_q is not None and self.w_k is not None and (self.w_score is not None)",
                "self.w_q is not None or self.w_k is not None or self.w_score is not None",
            ),
            Key(
                "luong.py",
                "LuongAttention.__call__",
                "self.w_q is not None and self.w_k is not None and (self.w_score is not None)",
                "self.w_k is not None and self.w_score is not None",
            ),
            Key(
                "luong.py",
                "LuongAttention.__call__",
                "self.w_q is not None and self.w_k is not None and (self.w_score is not None)",
                "self.w_q is not None and self.w_score is not None",
            ),
            Key(
                "luong.py",
                "LuongAttention.__call__",
                "self.w_q is not None and self.w_k is not None and (self.w_score is not None)",
                "self.w_q is not None and self.w_k is not None",
            ),
            Key(
                "luong.py",
                "LuongAttention.vjp",
                "self.w_q is not None and self.w_k is not None and (self.w_score is not None)",
                "self.w_q is not None or self.w_k is not None or self.w_score is not None",
            ),
            Key(
                "luong.py",
                "LuongAttention.vjp",
                "self.w_q is not None and self.w_k is not None and (self.w_score is not None)",
                "self.w_k is not None and self.w_score is not None",
            ),
            Key(
                "luong.py",
                "LuongAttention.vjp",
                "self.w_q is not None and self.w_k is not None and (self.w_score is not None)",
                "self.w_q is not None and self.w_score is not None",
            ),
            Key(
                "luong.py",
                "LuongAttention.vjp",
                "self.w_q is not None and self.w_k is not None and (self.w_score is not None)",
                "self.w_q is not None and self.w_k is not None",
            ),
        ),
    ),
    (
        "The contract asks for half_window with every window, and makes w_position and w_center together for one kind.",
        (
            Key(
                "luong.py",
                "LuongAttention.__call__",
                "c.half_window is not None and self.w_position is not None and (self.w_center is not None)",
                "self.w_position is not None and self.w_center is not None",
            ),
            Key(
                "luong.py",
                "LuongAttention.__call__",
                "c.half_window is not None and self.w_position is not None and (self.w_center is not None)",
                "c.half_window is not None and self.w_center is not None",
            ),
            Key(
                "luong.py",
                "LuongAttention.__call__",
                "c.half_window is not None and self.w_position is not None and (self.w_center is not None)",
                "c.half_window is not None and self.w_position is not None",
            ),
            Key(
                "luong.py",
                "LuongAttention.vjp",
                "c.half_window is not None and self.w_center is not None",
                "self.w_center is not None",
            ),
            Key(
                "luong.py",
                "LuongAttention.vjp",
                "dcenter is not None and self.w_position is not None and (self.w_center is not None)",
                "self.w_position is not None and self.w_center is not None",
            ),
            Key(
                "luong.py",
                "LuongAttention.vjp",
                "dcenter is not None and self.w_position is not None and (self.w_center is not None)",
                "dcenter is not None and self.w_center is not None",
            ),
            Key(
                "luong.py",
                "LuongAttention.vjp",
                "dcenter is not None and self.w_position is not None and (self.w_center is not None)",
                "dcenter is not None and self.w_position is not None",
            ),
            Key(
                "luong.py",
                "LuongAttention.vjp",
                "dcenter is not None and self.w_position is not None and (self.w_center is not None)",
                "dcenter is not None or self.w_position is not None or self.w_center is not None",
            ),
        ),
    ),
    (
        "A window reaches as far to both sides, and its distances are not taped.",
        (
            Key(
                "luong.py",
                "LuongAttention.__call__",
                "place - (arange(n['t'], query)[:, None] + 1)",
                "arange(n['t'], query)[:, None] + 1 - place",
            ),
        ),
    ),
    (
        "No center predicted from random numbers has a key at its window's very edge; the test of the variant has one.",
        (
            Key("luong.py", "LuongAttention.__call__", "ahead <= c.half_window", "ahead < c.half_window", 1),
            Key("luong.py", "LuongAttention.__call__", "ahead >= -c.half_window", "ahead > -c.half_window", 1),
        ),
    ),
    (
        "All keys may be seen: one True goes as far as one for each.",
        (
            Key("luong.py", "numbered", "arange(shape[2], like)", "shape[2]"),
            Key("luong.py", "numbered", "arange(shape[2], like) >= 0", "arange(shape[2], like) >= -1"),
        ),
    ),
    (
        "Both are None here.",
        (Key("luong.py", "LuongAttention.vjp", "(c, dtype, w, dbias, dcenter)", "(c, dtype, w, dcenter, dbias)"),),
    ),
    (
        "Two terms add up in either order.",
        (Key("luong.py", "LuongAttention.vjp", "total(dquery, dposition)", "total(dposition, dquery)"),),
    ),
    (
        "Key and value are one array here, hidden alike, and their gradients are added up.",
        (
            Key("rotary.py", "RotaryAttention.__call__", "(query, key, value)", "(query, value, key)"),
            Key("rotary.py", "RotaryAttention.vjp", "(query, key, value)", "(query, value, key)"),
            Key(
                "rotary.py",
                "RotaryAttention.vjp",
                "(tape['seen_query'], tape['seen_key'], tape['seen_value'])",
                "(tape['seen_query'], tape['seen_value'], tape['seen_key'])",
            ),
            Key(
                "rotary.py",
                "RotaryAttention.vjp",
                "inputs_vjp(tape, 'bhts', dquery, dkey, dvalue)",
                "inputs_vjp(tape, 'bhts', dquery, dvalue, dkey)",
            ),
            Key("self_attention.py", "SelfAttention.__call__", "(query, key, value)", "(query, value, key)"),
            Key("self_attention.py", "SelfAttention.vjp", "(query, key, value)", "(query, value, key)"),
            Key(
                "self_attention.py",
                "SelfAttention.vjp",
                "(tape['seen_query'], tape['seen_key'], tape['seen_value'])",
                "(tape['seen_query'], tape['seen_value'], tape['seen_key'])",
            ),
            Key(
                "self_attention.py",
                "SelfAttention.vjp",
                "inputs_vjp(tape, 'bts', dquery, dkey, dvalue)",
                "inputs_vjp(tape, 'bts', dquery, dvalue, dkey)",
            ),
        ),
    ),
    (
        "The axis has one entry, which is the first and the last.",
        (
            Key(
                "seq2seq.py",
                "look_vjp",
                "sum_to(dsum, (dsum.shape[0], 1, dsum.shape[2]))[:, 0]",
                "sum_to(dsum, (dsum.shape[0], 1, dsum.shape[2]))[:, -1]",
            ),
            Key("seq2seq.py", "Seq2Seq.begin", "allowed[:, 0]", "allowed[:, -1]"),
            Key(
                "seq2seq.py",
                "Seq2Seq.begin.feed",
                "[gates[:, 0] for gates in decoder.known(x[:, None], w)]",
                "[gates[:, -1] for gates in decoder.known(x[:, None], w)]",
            ),
            Key("seq2seq.py", "Seq2Seq.generate", "(x[:, 0], start)", "(x[:, -1], start)"),
            Key("seq2seq.py", "Seq2Seq.greedy", "(x[:, 0], running, start)", "(x[:, -1], running, start)"),
        ),
    ),
    (
        "Only as many ways as there are layers are read.",
        (
            Key("seq2seq.py", "AttentionDecoder.run_vjp.step", "rest[:count]", "rest[:count + 1]"),
            Key("seq2seq.py", "AttentionDecoder.run_vjp.step", "rest[:count]", "rest[:]"),
        ),
    ),
    (
        "Both begin as the empty tuple.",
        (
            Key(
                "seq2seq.py",
                "AttentionDecoder.run_vjp.step",
                "(ways, gates, dstate, daround, dgates)",
                "(ways, gates, dstate, dgates, daround)",
            ),
        ),
    ),
    (
        "That no value was given is what tells inputs_vjp that the key stood in for it; the key is not looked for.",
        (
            Key(
                "seq2seq.py",
                "AttentionDecoder.run_vjp",
                "...  'seen_value': memory, 'key': memory, 'allowed': allowed, 'feat ...",
                "...  'seen_value': memory, 'allowed': allowed, 'feat ...",
            ),
            Key(
                "seq2seq.py",
                "AttentionDecoder.run_vjp",
                "... een_value': memory, 'key': memory, 'allowed': al ...",
                "... een_value': memory, 'key_': memory, 'allowed': al ...",
            ),
        ),
    ),
    (
        "`take` widens the table that it is given.",
        (Key("seq2seq.py", "Seq2Seq.embed", "upcast(self.embedding)", "self.embedding"),),
    ),
    (
        "Both copies are the same mask, and the first is taken.",
        (Key("seq2seq.py", "Seq2Seq.begin", "broadcast_to(mask, (b, 1, s))", "broadcast_to(mask, (b, 2, s))"),),
    ),
    (
        "What hidden places hold is the state before them, finite unless a place that is seen is not; its weight is 0.",
        (
            Key("seq2seq.py", "Seq2Seq.begin", "memory = zero_unseen('bts->bse', allowed, memory)", "pass"),
            Key(
                "seq2seq.py",
                "Seq2Seq.begin",
                "zero_unseen('bts->bse', allowed, memory)",
                "zero_unseen('tbs->bse', allowed, memory)",
            ),
            Key(
                "seq2seq.py",
                "Seq2Seq.begin",
                "zero_unseen('bts->bse', allowed, memory)",
                "zero_unseen('bst->bse', allowed, memory)",
            ),
        ),
    ),
    (
        "Without a keep-mask the sizes are not read.",
        (
            Key("seq2seq.py", "Seq2Seq.begin.feed", "decoder.gru.ways(None, b, 1)", "decoder.gru.ways(None, 1, b)"),
            Key("seq2seq.py", "Seq2Seq.begin.feed", "decoder.gru.ways(None, b, 1)", "decoder.gru.ways(None, b, 2)"),
            Key("seq2seq.py", "Seq2Seq.begin.feed", "decoder.gru.ways(None, b, 1)", "decoder.gru.ways(None, b, 0)"),
        ),
    ),
    (
        "Nothing is taped here, so the names are not read.",
        (
            Key("seq2seq.py", "Seq2Seq.generate", "names=('y',)", "names=('y_',)"),
            Key("seq2seq.py", "Seq2Seq.greedy", "('tokens', 'done')", "('done', 'tokens')"),
            Key("seq2seq.py", "Seq2Seq.greedy", "('tokens', 'done')", "('tokens_', 'done')"),
            Key("seq2seq.py", "Seq2Seq.greedy", "('tokens', 'done')", "('tokens', 'done_')"),
        ),
    ),
    (
        "Of two axes the second is the last.",
        (Key("seq2seq.py", "Seq2Seq.greedy.step", "argmax(y, axis=-1)", "argmax(y, axis=1)"),),
    ),
    (
        "A row that is done gets the stop as its token, so the comparison alone says so again.",
        (Key("seq2seq.py", "Seq2Seq.greedy.step", "done | (token == stop)", "token == stop"),),
    ),
    (
        "The first True counts, not how many follow.",
        (Key("seq2seq.py", "Seq2Seq.greedy", "zeros((n['b'], 1), x)", "zeros((n['b'], 2), x)"),),
    ),
    (
        "Which is the largest does not depend on how much larger it is.",
        (
            Key("seq2seq.py", "Seq2Seq.greedy", "where(ends, 1, 0)", "where(ends, 1, -1)"),
            Key("seq2seq.py", "Seq2Seq.greedy", "where(ends, 1, 0)", "where(ends, 2, 0)"),
        ),
    ),
    (
        "The largest of Booleans is the first True.",
        (Key("seq2seq.py", "Seq2Seq.greedy", "where(ends, 1, 0)", "where(1, ends, 0)"),),
    ),
    (
        "One head: its axis has length 1.",
        (
            Key("_attend.py", "fused", "context[:, :, 0]", "context[:, :, -1]"),
            Key("_attend.py", "fused_vjp", "x if heads else x[:, :, 0]", "x if heads else x[:, :, -1]"),
            Key("_attend.py", "fused_vjp", "found.dbiased[:, 0]", "found.dbiased[:, -1]"),
        ),
    ),
    (
        "All three must be plain arrays, in whatever order they are asked.",
        (
            Key("_attend.py", "attend", "kernels.serves(q, k, v)", "kernels.serves(k, q, v)"),
            Key("_attend.py", "attend", "kernels.serves(q, k, v)", "kernels.serves(q, v, k)"),
        ),
    ),
    (
        "In a step the cache says how many queries and keys there are.",
        tuple(
            Key(
                "_attend.py",
                "attend",
                "attention_mask(mask, 0, 0, like=q, causal=causal, window=window, step=step)",
                f"attention_mask(mask, {sizes}, like=q, causal=causal, window=window, step=step)",
            )
            for sizes in ("1, 0", "-1, 0", "0, 1", "0, -1")
        ),
    ),
    (
        "All keys are at the first or after it: a mask that hides none.",
        tuple(
            Key(
                "_core.py",
                "Sight.keys",
                "None if first == 0 else arange(self.band.s, self.like) >= first",
                f"None if {condition} else arange(self.band.s, self.like) >= first",
            )
            for condition in ("False", "first == -1")
        ),
    ),
    (
        "Below 0 only where the first key is shown, and then every other count is above 0 anyway.",
        (Key("_core.py", "Sight.queries", "0 * count[..., :1]", "-1 * count[..., :1]"),),
    ),
    (
        "The larger of two numbers, whichever is named first.",
        tuple(
            Key("_core.py", "Sight.queries", f"clip({x}, 0, self.band.s)", f"clip(0, {x}, self.band.s)")
            for x in (
                "at - (self.band.s if left is None else left)",
                "at + (self.band.s + t if right is None else right) + 1",
            )
        ),
    ),
    (
        "The first query stands s - t, so t further is already beyond the last key.",
        (Key("_core.py", "Sight.queries", "self.band.s + t", "t"),),
    ),
    (
        "Two axes exchanged are the same two named the other way round.",
        (Key("_core.py", "Sight.queries", "some.swapaxes(-1, -2)", "some.swapaxes(-2, -1)"),),
    ),
    (
        "As many queries as keys: both are None or neither is, and who sees or is seen is one question.",
        (
            Key("fused_qkv.py", "only_live", "(seeing, seen_by)", "(seen_by, seeing)"),
            Key(
                "fused_qkv.py",
                "only_live",
                "(any_visible('bhts->btd', allowed), any_visible('bhts->bsd', allowed))",
                "(any_visible('bhts->bsd', allowed), any_visible('bhts->btd', allowed))",
            ),
        ),
    ),
    (
        "Two axes exchanged are the same two named the other way round.",
        (
            Key(
                "_core.py",
                "rooms",
                "zeros((b, h, s, k), like).swapaxes(1, 2)",
                "zeros((b, h, s, k), like).swapaxes(2, 1)",
            ),
        ),
    ),
    (
        "Where the cache says who sees whom, nothing asks how many keys there are.",
        (Key("_core.py", "sight", "step is not None and ordered", "step is not None"),),
    ),
    (
        "A key of calls says the same in another order, under other names or twice: it must differ where calls do.",
        (
            Key("_attend.py", "attend", "exact(*words[0], *words[1:])", "exact(*words[1:], *words[0])"),
            Key("_attend.py", "attend", "exact(*words[0], *words[1:])", "exact(*words[0], *words[:])"),
            Key("_attend.py", "attend", "exact(*words[0], *words[1:])", "exact(*words[0], *words[0:])"),
            *(
                Key("_attend.py", "attend", "{'q': q, 'mask': mask, 'bias': bias}", after)
                for after in (
                    "{'q': mask, 'mask': q, 'bias': bias}",
                    "{'q': q, 'mask': bias, 'bias': mask}",
                    "{'q_': q, 'mask': mask, 'bias': bias}",
                    "{'q': q, 'mask_': mask, 'bias': bias}",
                    "{'q': q, 'mask': mask, 'bias_': bias}",
                )
            ),
            *(
                Key("_core.py", "Layer.step", before, after)
                for before, after in (
                    ("{'query': query, **given, 'valid': valid}", "{'query_': query, **given, 'valid': valid}"),
                    ("signature(words, new, cache.arrays)", "signature(words, cache.arrays, new)"),
                    (
                        "{'query': query, **given, 'valid': valid}",
                        "{'query': query, **given, 'valid_': valid}",
                    ),
                    *(
                        ("('step', self.dtype, dropping, cache.max_length)", after)
                        for after in (
                            "(self.dtype, 'step', dropping, cache.max_length)",
                            "('step', dropping, self.dtype, cache.max_length)",
                            "('step', self.dtype, cache.max_length, dropping)",
                            "('step_', self.dtype, dropping, cache.max_length)",
                        )
                    ),
                )
            ),
            Key(
                "_core.py",
                "signature",
                "(__name__, words, *[(n, type(x), x.shape ...",
                "(words, __name__, *[(n, type(x), x.shape ...",
            ),
            Key(
                "_core.py",
                "signature",
                f"(__name__, words, *{SEEN})",
                f"(__name__, *{SEEN}, words)",
            ),
            *(
                Key("_core.py", "signature", "(n, type(x), x.shape, x.dtype)", after)
                for after in (
                    "(type(x), n, x.shape, x.dtype)",
                    "(n, x.shape, type(x), x.dtype)",
                    "(n, type(x), x.dtype, x.shape)",
                )
            ),
        ),
    ),
)

EQUIVALENT: dict[Key, str] = {key: reason for reason, keys in REVIEWED for key in keys}
