r"""Sequence to sequence with attention: before each step the decoder looks back at all that the encoder read.

$$m = \mathrm{GRU}(source), \qquad c_t = \mathrm{additive}(h_{t-1}, m, m)$$
$$h_t = \mathrm{GRU\ step}([c_t;\, x_t],\, h_{t-1}), \qquad y_t = h_t\, w_o + b_o$$

It starts with the encoder's last state, and takes the right target so far as its inputs (teacher forcing).

Paper: Bahdanau et al. 2015, arXiv:1409.0473, sections 3.1 and 3.2, with one direction and one layer.
"""

import numpy as np

from attn_np.textbook import additive, gru


def forward(source, target, encoder, attention, decoder, w_o, b_o):
    """The outputs `b t o` for a source `b s d`, a target `b t d`, and the weights of the three parts by name."""
    memory, encoder_steps = gru.forward(source, **encoder)
    h, states, steps = memory[:, -1], [], []
    for t in range(target.shape[1]):
        context, looked = additive.forward(h[:, None], memory, memory, **attention)
        h, stepped = gru.cell(np.concatenate([context[:, 0], target[:, t]], -1), h, **decoder)
        states.append(h)
        steps.append((looked, stepped))
    states = np.stack(states, 1)
    return states @ w_o + b_o, (encoder_steps, memory, steps, states, w_o)


def backward(dy, saved):
    """The loop in reverse. A state is an output, the next query and the next step's state; the memory is read often."""
    encoder_steps, memory, steps, states, w_o = saved
    dstates, dmemory, dh, attention, decoder = dy @ w_o.T, np.zeros_like(memory), 0, {}, {}
    e, dtarget = w_o.shape[0], []
    for t in reversed(range(dy.shape[1])):
        looked, stepped = steps[t]
        dinput, dh, grads = gru.cell_backward(dstates[:, t] + dh, stepped)
        decoder = {name: decoder.get(name, 0) + grad for name, grad in grads.items()}
        dtarget.insert(0, dinput[:, e:])
        grads = additive.backward(dinput[:, None, :e], looked)
        dh = dh + grads.pop("query")[:, 0]
        dmemory += grads.pop("key") + grads.pop("value")
        attention = {name: attention.get(name, 0) + grad for name, grad in grads.items()}
    dmemory[:, -1] += dh
    encoder = gru.backward(dmemory, encoder_steps)
    return {
        "source": encoder.pop("x"), "target": np.stack(dtarget, 1),
        "encoder": encoder, "attention": attention, "decoder": decoder,
        "w_o": np.einsum("bte,bto->eo", states, dy), "b_o": dy.sum((0, 1)),
    }  # fmt: skip
