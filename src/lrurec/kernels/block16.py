"""A whole block with products of bfloat16, forward and backward. Knows rows of numbers.

What goes into a product is rounded to 16-bit floats (bfloat16: the upper half of a float), which numpy holds as int16, and
so is what the backward keeps of the forward; what comes out of a product, the state of the recurrence, residuals,
LayerNorm and everything summed over rows has 32 bits. `key`, `limit` and `scale` are those of lrurec.nn.dropout; `start`
is the number of the first element among all of the batch.
"""

from typing import Any

import numpy as np

from lrurec.kernels.arithmetic import compiled, f4, inlined, is_kept, widened
from lrurec.kernels.dot16 import half, multiply, multiply_columns, pair_rows


@inlined
def below(x: Any, u: Any) -> Any:
    """The chance that a normal variable stays below x, to 3e-5, for x in [-4, 4] and u = x^2 / 8 - 1.

    Odd around 1/2, so x times a polynomial of x^2: as good as 16-bit floats can tell, without exponential or division.
    """
    p = f4(u * f4(-0.0033149072) + f4(0.0086998241))
    p = f4(p * u + f4(-0.012560657))
    p = f4(p * u + f4(0.021084992))
    p = f4(p * u + f4(-0.036711298))
    p = f4(p * u + f4(0.056189414))
    p = f4(p * u + f4(-0.084343486))
    p = f4(p * u + f4(0.17594291))
    return f4(p * x + f4(0.5))


@inlined
def slope(x: Any, u: Any) -> Any:
    """The derivative of GELU, to 6e-5, in the same way."""
    p = f4(u * f4(0.016434109) + f4(-0.040880561))
    p = f4(p * u + f4(0.047520917))
    p = f4(p * u + f4(-0.06456352))
    p = f4(p * u + f4(0.099534482))
    p = f4(p * u + f4(-0.11741546))
    p = f4(p * u + f4(0.114636))
    p = f4(p * u + f4(-0.1133754))
    p = f4(p * u + f4(0.18324909))
    return f4(p * x + f4(0.5))


@compiled
def halve(x: Any, out: Any) -> None:
    """x [R, W], rounded."""
    rows, width = x.shape
    for i in range(rows):
        for j in range(width):
            out[i, j] = half(x[i, j])


@compiled
def _add(x: Any, out: Any) -> None:
    rows, width = out.shape
    for i in range(rows):
        for j in range(width):
            out[i, j] += x[i, j]


@compiled
def _add_and_normalise(
    y: Any,
    bias: Any,
    x: Any,
    start: Any,
    key: Any,
    limit: Any,
    scale: Any,
    gain: Any,
    shift: Any,
    norm: Any,
    spread: Any,
    out: Any,
) -> None:
    """out = LayerNorm(Dropout(y + bias) + x); keeps the normalised rows, rounded, and one over their deviations."""
    rows, width = out.shape
    for i in range(rows):
        total = f4(0)
        for j in range(width):
            kept = is_kept(start + i * width + j, key, limit)
            r = f4(x[i, j] + (f4(y[i, j] + bias[j]) * scale if kept else f4(0)))
            out[i, j] = r
            total += r
        mean = f4(total / f4(width))
        squares = f4(0)
        for j in range(width):
            r = f4(out[i, j] - mean)
            squares += r * r
        s = f4(f4(1.0) / np.sqrt(f4(squares / f4(width) + f4(1e-5))))
        spread[i] = s
        for j in range(width):
            r = f4((out[i, j] - mean) * s)
            norm[i, j] = half(r)
            out[i, j] = r * gain[j] + shift[j]


@compiled
def _normalise_backward(
    norm: Any,
    spread: Any,
    gain: Any,
    start: Any,
    key: Any,
    limit: Any,
    scale: Any,
    d_gain: Any,
    d_shift: Any,
    d: Any,
    d_y: Any,
    d_bias: Any,
) -> None:
    """`d`, the gradient of what `_add_and_normalise` gives, becomes that of x; that of y is rounded, of the rest added."""
    rows, width = d.shape
    for i in range(rows):
        first, second = f4(0), f4(0)
        for j in range(width):
            n, g = widened(norm[i, j]), f4(d[i, j] * gain[j])
            first += g
            second += g * n
            d_gain[j] += d[i, j] * n
            d_shift[j] += d[i, j]
        first, second = f4(first / f4(width)), f4(second / f4(width))
        s = spread[i]
        for j in range(width):
            g = f4(s * (d[i, j] * gain[j] - first - widened(norm[i, j]) * second))
            d[i, j] = g
            kept = is_kept(start + i * width + j, key, limit)
            g = f4(g * scale) if kept else f4(0)
            d_y[i, j] = half(g)
            d_bias[j] += g


@compiled
def _gelu(a: Any, bias: Any, start: Any, key: Any, limit: Any, scale: Any, inner: Any, out: Any) -> None:
    """out = Dropout(GELU(a + bias)); keeps a + bias, rounded, in `inner`."""
    rows, width = inner.shape
    for i in range(rows):
        for j in range(width):
            x = f4(a[i, j] + bias[j])
            inner[i, j] = half(x)
            near = min(max(x, f4(-4.0)), f4(4.0))
            g = f4(x * below(near, f4(near * near * f4(0.125) - f4(1.0))))
            kept = is_kept(start + i * width + j, key, limit)
            out[i, j] = half(f4(g * scale) if kept else f4(0))


@compiled
def _gelu_backward(
    inner: Any, d: Any, start: Any, key: Any, limit: Any, scale: Any, out: Any, d_a: Any, d_bias: Any
) -> None:
    """From `d`, the gradient of Dropout(GELU(a)), that of a, its columns added to `d_bias`; `out` is computed again."""
    rows, width = inner.shape
    for i in range(rows):
        for j in range(width):
            x = widened(inner[i, j])
            near = min(max(x, f4(-4.0)), f4(4.0))
            u = f4(near * near * f4(0.125) - f4(1.0))
            kept = scale if is_kept(start + i * width + j, key, limit) else f4(0)
            out[i, j] = half(f4(x * below(near, u) * kept))
            g = f4(d[i, j] * kept * slope(near, u))
            d_a[i, j] = half(g)
            d_bias[j] += g


@compiled
def _recur(u: Any, bias: Any, lam: Any, opens: Any, begins: Any, start: Any, state: Any, h: Any) -> None:
    """h_k = lambda h_{k-1} + u_k + bias over rows from `start`; the rows of h are rounded.

    `state` [2C] holds h of the row before the first, and of the last row afterwards; where a sequence opens (as in
    lrurec.kernels.block), it is that of `begins`.
    """
    rows, channels = h.shape[0], h.shape[1] // 2
    for i in range(rows):
        if opens[start + i] != 0:
            state[:] = begins[opens[start + i] - 1]
        for c in range(channels):
            real, imaginary = state[c], state[channels + c]
            first = f4(lam[0, c] * real - lam[1, c] * imaginary + u[i, c] + bias[c])
            second = f4(lam[0, c] * imaginary + lam[1, c] * real + u[i, channels + c] + bias[channels + c])
            state[c] = first
            state[channels + c] = second
            h[i, c] = half(first)
            h[i, channels + c] = half(second)


@compiled
def _recur_backward(
    d: Any,
    h: Any,
    lam: Any,
    opens: Any,
    begins: Any,
    start: Any,
    order: Any,
    carry: Any,
    sums: Any,
    a: Any,
    d_bias: Any,
) -> None:
    """a_k = d_k + conj(lambda) a_{k+1} over rows from `start`, the last first; the rows of a are rounded.

    `carry` [2C] holds a of the row behind the last, and of the first row afterwards; `opens` has one element more than
    all rows. The gradient of lambda is added to `sums` [2, C], the columns to `d_bias`. `order` counts down to 0: in a
    loop that counts down itself, the compiler takes the rows for ones that overlap, and makes no vectors.
    """
    rows, channels = h.shape[0], h.shape[1] // 2
    for r in range(len(order) - rows, len(order)):
        i = order[r]
        ends_here = opens[start + i + 1] != 0
        for c in range(channels):
            real = f4(0) if ends_here else carry[c]
            imaginary = f4(0) if ends_here else carry[channels + c]
            p, q = widened(h[i, c]), widened(h[i, channels + c])
            sums[0, c] += real * p + imaginary * q
            sums[1, c] += imaginary * p - real * q
        for c in range(channels):
            real = f4(0) if ends_here else carry[c]
            imaginary = f4(0) if ends_here else carry[channels + c]
            first = f4(d[i, c] + lam[0, c] * real + lam[1, c] * imaginary)
            second = f4(d[i, channels + c] + lam[0, c] * imaginary - lam[1, c] * real)
            carry[c] = first
            carry[channels + c] = second
            a[i, c] = half(first)
            a[i, channels + c] = half(second)
        for c in range(2 * channels):
            d_bias[c] += carry[c]
        if opens[start + i] != 0:
            before = begins[opens[start + i] - 1]
            for c in range(channels):
                sums[0, c] += carry[c] * before[c] + carry[channels + c] * before[channels + c]
                sums[1, c] += carry[channels + c] * before[c] - carry[c] * before[channels + c]


@compiled
def forward(
    x: Any,
    begin: Any,
    end: Any,
    piece: Any,
    w: Any,
    factors: Any,
    kept: Any,
    opens: Any,
    begins: Any,
    drop: Any,
    out: Any,
) -> None:
    """Rows [begin, end) of the batch through the block, `piece` rows at a time."""
    lam, _, b_bias, _, c_bias, gain1, shift1, _, b1, _, b2, gain2, shift2 = w
    b, c, w1, w2 = factors
    kept_x, kept_h, norm1, spread1, kept_z, inner, norm2, spread2 = kept
    mixed, inside, outer, limit, scale = drop
    width, states, wide = x.shape[1], kept_h.shape[1], inner.shape[1]
    state = np.zeros(states, np.float32)
    u, a = np.empty((piece + 3, states), np.float32), np.empty((piece + 3, wide), np.float32)
    y, z = np.empty((piece + 3, width), np.float32), np.empty((piece, width), np.float32)
    g = np.empty((piece + 3, wide), np.int16)
    for s in range(begin, end, piece):
        e = min(s + piece, end)
        n = e - s
        halve(x[s:e], kept_x[s:e])
        multiply(kept_x[s:], n, b, u, False)
        _recur(u, b_bias, lam, opens, begins, s, state, kept_h[s:e])
        multiply(kept_h[s:], n, c, y, False)
        _add_and_normalise(
            y, c_bias, x[s:e], s * width, mixed, limit, scale, gain1, shift1, norm1[s:e], spread1[s:e], z[:n]
        )
        if wide == 0:  # no feed-forward network
            out[s:e] = z[:n]
            continue
        halve(z[:n], kept_z[s:e])
        multiply(kept_z[s:], n, w1, a, False)
        _gelu(a, b1, s * wide, inside, limit, scale, inner[s:e], g)
        multiply(g, n, w2, y, False)
        _add_and_normalise(y, b2, z, s * width, outer, limit, scale, gain2, shift2, norm2[s:e], spread2[s:e], out[s:e])


@compiled
def backward(
    grad: Any,
    begin: Any,
    end: Any,
    piece: Any,
    w: Any,
    factors: Any,
    kept: Any,
    opens: Any,
    begins: Any,
    drop: Any,
    d_x: Any,
    d: Any,
    sums: Any,
) -> None:
    """The same rows, the last first: writes their `d_x`, adds to the gradients `d` of the weights and `sums` of lambda."""
    lam, _, _, _, _, gain1, _, _, _, _, _, gain2, _ = w
    b, c, w1, w2 = factors
    kept_x, kept_h, norm1, spread1, kept_z, inner, norm2, spread2 = kept
    _, d_b, d_b_bias, d_c, d_c_bias, d_gain1, d_shift1, d_w1, d_b1, d_w2, d_b2, d_gain2, d_shift2 = d
    mixed, inside, outer, limit, scale = drop
    width, states, wide = grad.shape[1], kept_h.shape[1], inner.shape[1]
    carry, some = np.zeros(states, np.float32), np.empty((2, states // 2), np.float32)
    order = np.arange(piece)[::-1].copy()
    d_a, d_h = np.empty((piece + 3, wide), np.float32), np.empty((piece + 3, states), np.float32)
    more, d_z = np.empty((piece + 3, width), np.float32), np.empty((piece, width), np.float32)
    y16, g16 = np.empty((piece + 3, width), np.int16), np.empty((piece, wide), np.int16)
    a16, h16 = np.empty((piece + 3, wide), np.int16), np.empty((piece + 3, states), np.int16)
    pairs = (piece + 1) // 2
    narrow, inner_pairs = np.empty((pairs, width), np.int32), np.empty((pairs, wide), np.int32)
    other, state_pairs = np.empty((pairs, width), np.int32), np.empty((pairs, states), np.int32)
    for k in range((end - begin + piece - 1) // piece - 1, -1, -1):
        s = begin + k * piece
        e = min(s + piece, end)
        n = e - s
        steps = (n + 1) // 2
        d_z[:n] = grad[s:e]
        if wide > 0:
            _normalise_backward(
                norm2[s:e], spread2[s:e], gain2, s * width, outer, limit, scale, d_gain2, d_shift2, d_z[:n], y16, d_b2
            )
            multiply(y16, n, w2, d_a, False)
            _gelu_backward(inner[s:e], d_a, s * wide, inside, limit, scale, g16, a16, d_b1)
            pair_rows(y16, n, narrow)
            pair_rows(g16, n, inner_pairs)
            multiply_columns(narrow, inner_pairs, steps, d_w2, True)
            pair_rows(a16, n, inner_pairs)
            pair_rows(kept_z[s:e], n, other)
            multiply_columns(inner_pairs, other, steps, d_w1, True)
            multiply(a16, n, w1, more, False)
            _add(more, d_z[:n])
        _normalise_backward(
            norm1[s:e], spread1[s:e], gain1, s * width, mixed, limit, scale, d_gain1, d_shift1, d_z[:n], y16, d_c_bias
        )
        multiply(y16, n, c, d_h, False)
        pair_rows(y16, n, narrow)
        pair_rows(kept_h[s:e], n, state_pairs)
        multiply_columns(narrow, state_pairs, steps, d_c, True)
        some[:] = 0
        _recur_backward(d_h, kept_h[s:e], lam, opens, begins, s, order, carry, some, h16, d_b_bias)
        sums += some
        pair_rows(h16, n, state_pairs)
        pair_rows(kept_x[s:e], n, other)
        multiply_columns(state_pairs, other, steps, d_b, True)
        multiply(h16, n, b, more, False)
        d_x[s:e] = d_z[:n]
        _add(more, d_x[s:e])
