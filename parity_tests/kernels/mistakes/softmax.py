"""Mistakes in kernels of softmax attention: masks, scores, the running softmax, heads, gradients, packs and pages."""

from parity_tests.kernels.planted import DENSE, PACKED, PAGED, SOFTMAX, WITH_GRADIENTS, mistake

every, graded, dense = mistake(SOFTMAX), mistake(WITH_GRADIENTS), mistake(DENSE)
packed, paged, of_pages_and_packs = mistake(PACKED), mistake(PAGED), mistake(("packed", "paged"))

SEEN = "seen = (columns < self.s) & (rows < self.t)[:, None]"
SHIFT = 'shift=0 if case.causal == "top-left" else length - count'
SCORES = "x = self.m.dot(q, k.swapaxes(1, 2)) * self.m.work.type(self.scale)"
BIAS = "x = x + self.part(self.added, rows, columns)"
ALIBI = "x = x - self.slopes[:, None, None] * np.abs(distance).astype(self.m.work)"
TO_POWERS = "x * self.m.work.type(LOG2E), -np.inf), slope"
TOTAL = "total = total * shrink + np.sum(p, axis=2, keepdims=True)"
DELTA = "delta = np.sum(dy * y, axis=2) - dlse"
HEADS = "heads = np.arange(h) // (h // g)"
WINDOW_RULE = "a query at p sees keys from p - left to p + right, both included"
CORNER_RULE = (
    "say at which corner causality ends; query i of t stands at i + s - t at the bottom right, at i at the top left"
)
BASE_RULE = "what is added to the scores is multiplied by log2(e) too, where weights are powers of 2"
RUNNING_RULE = "when the maximum grows, multiply the sum and the accumulator by exp(old maximum - new maximum)"
HEAD_RULE = "query head i reads key head i // (heads / key heads)"
DROPOUT_RULE = "dropout: where(keep, p / (1 - rate), 0) after the sum, and the same on dp in the backward pass"
BLOCK_RULE = "a block range must hold every key that any query of the block sees; round its ends outwards"
RECOMPUTE_RULE = "the backward pass computes the same scores as the forward pass: mask, cap and bias included"
PAGE_RULE = "key j lies in page table[row, j // page size], at j % page size"

MISTAKES = (
    # Masks, corners and windows
    every(
        "last block of keys not masked",
        "hide columns at and beyond the number of keys before the softmax",
        SEEN,
        "seen = (columns >= 0) & (rows < self.t)[:, None]",
    ),
    every(
        "causality aligned at the other corner",
        CORNER_RULE,
        SHIFT,
        'shift=length - count if case.causal == "top-left" else 0',
    ),
    every(
        "causality ignored", "causal: no query sees a later key", "right = 0 if case.causal else right", "right = right"
    ),
    every(
        "causal queries do not see their own position",
        "causal: a query sees its own position, too",
        "right = 0 if case.causal else right",
        "right = -1 if case.causal else right",
    ),
    every("window one key short at the left", WINDOW_RULE, "distance >= -self.left", "distance > -self.left"),
    every(
        "window one key wide at the left",
        WINDOW_RULE,
        "distance >= -self.left",
        "distance >= -self.left - 1",
        "self.shift - self.left)",
        "self.shift - self.left - 1)",
    ),
    every(
        "window one key short at the right",
        WINDOW_RULE,
        "right = 0 if case.causal else right",
        "right = 0 if case.causal else right and right - 1",
    ),
    every(
        "window ignored",
        "pass the window on to the kernel",
        "left, right = case.window or (None, None)",
        "left, right = None, None",
    ),
    every(
        "right side of the window cut to the number of keys",
        "where there are fewer keys than queries, a right side beyond the last key still means more than their number",
        "right=right,",
        "right=None if right is None else min(right, length),",
    ),
    every(
        "blocks left of the window skipped by the last query",
        BLOCK_RULE,
        "int(rows[0]) + self.shift - self.left",
        "int(rows[-1]) + self.shift - self.left",
    ),
    every(
        "blocks right of the diagonal skipped by the first query",
        BLOCK_RULE,
        "int(rows[-1]) + self.shift + self.right",
        "int(rows[0]) + self.shift + self.right",
    ),
    every(
        "blocks right of the diagonal skipped without the offset",
        BLOCK_RULE,
        "int(rows[-1]) + self.shift + self.right",
        "int(rows[-1]) + self.right",
    ),
    every(
        "blocks behind the last key read",
        "causality and windows don't end the loop over keys alone: it ends at the last key, too",
        "high = min(self.s, int(rows[-1]) + self.shift + self.right + 1)",
        "high = int(rows[-1]) + self.shift + self.right + 1",
        "return np.where(inside[:, None, None], block, 0)[:, heads]",
        "return np.where(inside[:, None, None], block, 0 if inside[0] else np.nan)[:, heads]",
    ),
    every(
        "last partial block of keys dropped",
        "round the number of blocks up",
        "low, high = 0, self.s",
        "low, high = 0, self.s // self.size * self.size",
    ),
    every(
        "last partial block of queries not computed",
        "round the number of blocks up",
        "        for rows in self.blocks(self.t):\n            q =",
        "        for rows in self.blocks(self.t // self.size * self.size):\n            q =",
    ),
    dense(
        "mask with the other polarity",
        "True means that a query may see the key",
        "seen & self.part(self.mask",
        "seen & ~self.part(self.mask",
    ),
    dense("mask ignored", "pass the mask on to the kernel", "if self.mask is not None:", "if False:"),
    dense(
        "mask, bias and dropout of the first head for all heads",
        "add the stride of the heads to the pointer",
        "return x[:, np.minimum(rows",
        "return x[[0] * len(x)][:, np.minimum(rows",
    ),
    every(
        "hidden scores are a large finite number",
        "select -inf, and 0 for rows that see nothing",
        TO_POWERS,
        "x * self.m.work.type(LOG2E), -1e30), slope",
    ),
    every(
        "(-inf) - (-inf) where no key is visible yet",
        "subtract 0 where the maximum is -inf",
        "base = np.where(np.isneginf(larger), 0, larger)",
        "base = larger",
        "found = np.where(total > 0, acc / np.where(total > 0, total, 1), 0)",
        "found = acc / total",
    ),
    # Scores
    every("scale missing", "multiply the scores by the scale", SCORES, "x = self.m.dot(q, k.swapaxes(1, 2))"),
    every(
        "scale applied twice",
        "multiply the scores by the scale once",
        SCORES,
        SCORES + " * self.m.work.type(self.scale)",
    ),
    every("log2(e) missing", "exp(x) = 2^(x log2(e))", TO_POWERS, "x, -np.inf), slope"),
    every("log2(e) twice", "exp(x) = 2^(x log2(e))", TO_POWERS, "x * self.m.work.type(LOG2E**2), -np.inf), slope"),
    dense("bias ignored", "pass the bias on to the kernel", "if self.added is not None:", "if False:"),
    dense("bias not multiplied by log2(e)", BASE_RULE, BIAS, BIAS + " * self.m.work.type(LN2)"),
    dense(
        "bias multiplied by the scale",
        "the bias is added after the scale",
        BIAS,
        BIAS + " * self.m.work.type(self.scale)",
    ),
    dense("bias subtracted", "the bias is added", BIAS, BIAS.replace("x + ", "x - ")),
    every("ALiBi ignored", "pass the slopes on to the kernel", "if self.slopes is not None:", "if False:"),
    every("ALiBi added in place of subtracted", "subtract slope times distance", ALIBI, ALIBI.replace("x - ", "x + ")),
    every(
        "ALiBi's distance without the offset",
        "the distance is taken from the query's position, i + s - t",
        ALIBI,
        ALIBI.replace("distance", "columns - rows[:, None]"),
    ),
    every("ALiBi not multiplied by log2(e)", BASE_RULE, ALIBI, ALIBI + " * self.m.work.type(LN2)"),
    every(
        "ALiBi's slopes of other heads",
        "slope h belongs to query head h",
        ALIBI,
        ALIBI.replace("self.slopes[:, None, None]", "self.slopes[::-1, None, None]"),
    ),
    every("softcap ignored", "scores become cap tanh(score / cap)", "if self.cap is not None:", "if False:"),
    every(
        "softcap without the factor behind tanh",
        "cap tanh(score / cap)",
        "x, slope = cap * tanh, 1",
        "x, slope = tanh, 1",
    ),
    every(
        "softcap multiplies tanh by the score",
        "cap tanh(score / cap)",
        "x, slope = cap * tanh, 1",
        "x, slope = x * tanh, 1",
    ),
    every(
        "softcap before the scale",
        "scale first, then cap",
        SCORES,
        SCORES + " ** (self.cap is None)",
        "x, slope = cap * tanh,",
        "x, slope = self.m.work.type(self.scale) * cap * tanh,",
    ),
    every(
        "only the first channels of a head enter the scores",
        "loop over the whole width of a head",
        SCORES,
        SCORES.replace("self.m.dot(q, k", "self.m.dot(q[..., :8], k[..., :8]"),
    ),
    # The running softmax
    every("accumulator not rescaled when the maximum grows", RUNNING_RULE, "acc * shrink", "acc"),
    every("sum not rescaled when the maximum grows", RUNNING_RULE, "total * shrink", "total"),
    every(
        "maximum of the block taken for that of the row",
        RUNNING_RULE,
        "self.m.exp2(x - base)",
        "self.m.exp2(x - np.maximum(np.max(x, axis=2, keepdims=True), -1e30))",
    ),
    every(
        "running maximum starts at a finite number",
        "start at -inf: scores may be lower than any number",
        "top = np.full((h, self.size, 1), -np.inf, self.m.work)",
        "top = np.full((h, self.size, 1), -1e4, self.m.work)",
    ),
    every(
        "no maximum subtracted",
        "subtract the maximum of the row from the scores",
        "base = np.where(np.isneginf(larger), 0, larger)",
        "base = np.zeros_like(larger)",
        "total + 1",
        "total + self.m.exp2(top)",
    ),
    every(
        "outputs not divided by the sum",
        "divide the accumulator by the sum of the weights",
        "acc / np.where(total > 0, total, 1)",
        "acc",
    ),
    every(
        "log-sum-exp in base 2",
        "multiply by ln 2",
        ".store(out).swapaxes(0, 1), sums",
        ".store(out).swapaxes(0, 1), sums / LN2",
    ),
    every(
        "log-sum-exp without the maximum",
        "log-sum-exp = maximum + log(sum)",
        "(np.where(total > 0, top, 0) + sums)",
        "sums",
    ),
    every(
        "rows without keys have a finite log-sum-exp",
        "-inf, so that merging gives them no weight",
        ".store(out).swapaxes(0, 1), sums",
        ".store(out).swapaxes(0, 1), np.maximum(sums, -5e4)",
    ),
    every(
        "sinks counted once per block",
        "add the sink to the sum once",
        TOTAL,
        TOTAL
        + " + (0 if self.sinks is None else self.m.exp2(self.sinks[:, None, None] * self.m.work.type(LOG2E) - base))",
    ),
    every("sinks left out of the sum", "a sink is one more term of the sum", "                total = total + 1\n", ""),
    every(
        "sinks not multiplied by log2(e)",
        BASE_RULE,
        "self.sinks[:, None, None] * self.m.work.type(LOG2E), top.shape",
        "self.sinks[:, None, None], top.shape",
    ),
    every(
        "sum of the weights kept in 16 bits",
        "keep sums in float32",
        TOTAL,
        "total = self.m.rounded(total * shrink + np.sum(p, axis=2, keepdims=True))",
        precise=True,
    ),
    # Heads
    every("query heads mapped h % g", HEAD_RULE, HEADS, "heads = np.arange(h) % g"),
    every(
        "query heads divided by the number of key heads",
        HEAD_RULE,
        HEADS,
        "heads = np.minimum(np.arange(h) // g, g - 1)",
    ),
    every("every query head reads the first key head", HEAD_RULE, HEADS, "heads = np.zeros(h, int)"),
    every(
        "values of the next key head",
        HEAD_RULE,
        "self.keys(self.v, columns)))",
        "self.keys(np.roll(self.v, 1, axis=1), columns)))",
    ),
    dense(
        "keys and values of the first row of the batch",
        "add the stride of the batch to the pointer",
        "else cache_k[row])",
        "else cache_k[0])",
        "else cache_v[row])",
        "else cache_v[0])",
    ),
    graded(
        "dk and dv of one query head of each group",
        "sum dk and dv over the query heads of a group",
        "np.sum(by_group, axis=1)",
        "by_group[:, 0]",
    ),
    graded(
        "dk and dv averaged over a group",
        "sum dk and dv over the query heads of a group",
        "np.sum(by_group, axis=1)",
        "np.mean(by_group, axis=1)",
    ),
    # Backward
    graded("delta (dy . y) missing", "ds = p (dp - dy . y)", DELTA, "delta = -dlse"),
    graded(
        "delta from rounded outputs",
        "keep dy . y of the float32 outputs, or promise the wider arithmetic",
        "out = m.rounded(out) if m.arithmetic.narrow else out",
        "out = m.rounded(out)",
        precise=True,
    ),
    graded(
        "gradient of the log-sum-exp ignored", "ds = p (dp - dy . y + dlse)", DELTA, "delta = np.sum(dy * y, axis=2)"
    ),
    graded(
        "gradient of the log-sum-exp subtracted",
        "ds = p (dp - dy . y + dlse)",
        DELTA,
        "delta = np.sum(dy * y, axis=2) + dlse",
    ),
    graded(
        "derivative of softcap missing", "multiply ds by 1 - tanh^2", "dx = m.narrow(ds * slope)", "dx = m.narrow(ds)"
    ),
    graded("scale missing in dq", "dq = scale ds k", "m.dot(dx, k) * scale", "m.dot(dx, k)"),
    graded("scale missing in dk", "dk = scale ds^T q", ", q)[:, :width] * scale", ", q)[:, :width]"),
    graded(
        "dq of the last block of keys only",
        "add the dq of all blocks of keys",
        "m.partial(dq[:, inside] + m.dot(dx, k)",
        "m.partial(m.dot(dx, k)",
    ),
    graded(
        "dk of the last block of queries only",
        "add the dk of all blocks of queries",
        "m.partial(dk[:, keys] + m.dot",
        "m.partial(m.dot",
    ),
    graded(
        "backward reads the log-sum-exp in base 2",
        "multiply it by log2(e) before it meets scores in base 2",
        "[:, inside, None] * log2e",
        "[:, inside, None]",
    ),
    graded(
        "backward without causality and window",
        RECOMPUTE_RULE,
        DELTA,
        DELTA + "\n        self.left = self.right = None",
    ),
    graded("backward without softcap", RECOMPUTE_RULE, DELTA, DELTA + "\n        self.cap = None"),
    graded(
        "backward without bias and ALiBi", RECOMPUTE_RULE, DELTA, DELTA + "\n        self.added = self.slopes = None"
    ),
    graded(
        "backward reads dy of the first query for all",
        "read dy by its strides",
        DELTA,
        "dy = np.broadcast_to(dy[:, :1], dy.shape)\n        " + DELTA,
    ),
    dense(
        "gradient of the bias multiplied by the scale",
        "the bias is added after the scale",
        "dscores[:, inside, keys] = ds[:, :, :width]",
        "dscores[:, inside, keys] = ds[:, :, :width] * scale",
    ),
    graded(
        "gradient of the sinks with the wrong sign",
        "dsink = -p_sink (dy . y - dlse)",
        "-np.sum(m.exp2(sink",
        "np.sum(m.exp2(sink",
    ),
    dense("dropout without its rescale", DROPOUT_RULE, "p / self.m.work.type(1 - self.rate)", "p"),
    dense(
        "dropout before the sum of the weights",
        DROPOUT_RULE,
        TOTAL,
        TOTAL.replace("np.sum(p,", "np.sum(self.dropped(p, rows, columns),"),
    ),
    dense(
        "backward of dropout: dp not dropped",
        DROPOUT_RULE,
        "dp = self.dropped(m.dot(dout, v.swapaxes(1, 2)), rows, columns)",
        "dp = m.dot(dout, v.swapaxes(1, 2))",
    ),
    dense(
        "backward of dropout: ds from the dropped weights",
        DROPOUT_RULE,
        "ds = p * (dp",
        "ds = self.dropped(p, rows, columns) * (dp",
    ),
    dense(
        "backward of dropout: dv from the weights that were not dropped",
        DROPOUT_RULE,
        "dropped = m.narrow(self.dropped(p, rows, columns))",
        "dropped = m.narrow(p)",
    ),
    # Packed sequences and pages
    packed(
        "first key of the next sequence is seen",
        "end each sequence at its own boundary",
        "s=length,",
        "s=min(length + 1, case.k.shape[1] - keys.start),",
        "np.sum(by_group, axis=1))",
        "np.sum(by_group, axis=1)[:, : keys.stop - keys.start])",
        'keys] = grads["dscores"]',
        'keys] = grads["dscores"][..., : keys.stop - keys.start]',
    ),
    packed(
        "keys begin where the queries do",
        "keys have boundaries of their own",
        "first_key=keys.start",
        "first_key=min(queries.start, case.k.shape[1] - length)",
    ),
    packed(
        "keys end as far from their first as queries do",
        "keys have boundaries of their own",
        "s=length,",
        "s=min(length, count),",
        "dk, dv = (np.zeros((h, self.s, x.shape[2]), m.work)",
        "dk, dv = (np.zeros((h, self.k.shape[0], x.shape[2]), m.work)",
        "np.sum(by_group, axis=1))",
        "np.sum(by_group, axis=1)[:, : keys.stop - keys.start])",
        "dscores = np.zeros((h, self.t, self.s), m.work)",
        "dscores = np.zeros((h, self.t, self.k.shape[0]), m.work)",
        'keys] = grads["dscores"]',
        'keys] = grads["dscores"][..., : keys.stop - keys.start]',
    ),
    packed(
        "queries begin one row too early",
        "a sequence begins at its own boundary",
        "first_query=queries.start",
        "first_query=max(0, queries.start - 1)",
    ),
    packed(
        "last sequence not computed",
        "there is one boundary more than sequences",
        "in case.spans():\n        count",
        "in case.spans()[: -1 if len(case.spans()) > 1 else None]:\n        count",
    ),
    of_pages_and_packs(
        "offset of causality from the whole buffer",
        "each sequence has its own offset, its keys less its queries",
        SHIFT,
        SHIFT.replace("length - count", "case.k.shape[1] - case.q.shape[1]"),
    ),
    paged(
        "page table off by one",
        PAGE_RULE,
        "self.table[columns // self.page]",
        "self.table[np.minimum(columns // self.page + 1, len(self.table) - 1)]",
    ),
    paged(
        "page table not read",
        PAGE_RULE,
        "self.table[columns // self.page]",
        "np.arange(len(self.table))[columns // self.page]",
    ),
    paged("page table of the first row for all", PAGE_RULE, "case.table[row]", "case.table[0]"),
    paged(
        "pages found by the size of a block",
        PAGE_RULE,
        "self.table[columns // self.page] * self.page + columns % self.page",
        "self.table[columns // self.size] * self.page + columns % self.page",
    ),
    paged("position in a page not added", PAGE_RULE, "* self.page + columns % self.page", "* self.page"),
    paged(
        "keys beyond a row's length are seen",
        "each row of the batch has its own number of keys",
        "s=length,",
        "s=case.k.shape[1],",
    ),
    paged(
        "last page of a row dropped",
        "round the number of pages up",
        "low, high = 0, self.s",
        "low, high = 0, self.s // self.page * self.page",
    ),
    paged(
        "keys beyond the first two blocks dropped",
        "loop over all pages",
        "low, high = 0, self.s",
        "low, high = 0, min(self.s, 2 * self.size)",
    ),
)
