"""What stands between the products of a gated recurrent unit, for one step of many sequences, and its backward.

Rows are sequences; the gates are reset r, update z and candidate n. One short loop for each result, and no array that a
loop both writes and reads elsewhere: with more, the compiler cannot see that arrays do not overlap, and works on one
element after the other, ten times as slow.
"""

from typing import Any

from lrurec.kernels.arithmetic import compiled, f4, sigmoid


@compiled
def gates(g: Any, u: Any, bias: Any, before: Any, r: Any, z: Any, n: Any, m: Any, h: Any) -> None:
    """One step: r = sigma(g_r + u_r), z = sigma(g_z + u_z), m = u_n, n = tanh(g_n + r m), h = n + z (before - n).

    g [B, 3, C] comes from the inputs, u [B, 3, C] and bias [3, C] from the states; all else is [B, C].
    """
    rows, channels = h.shape
    for i in range(rows):
        for c in range(channels):
            r[i, c] = sigmoid(f4(g[i, 0, c] + u[i, 0, c] + bias[0, c]))
        for c in range(channels):
            z[i, c] = sigmoid(f4(g[i, 1, c] + u[i, 1, c] + bias[1, c]))
        for c in range(channels):
            m[i, c] = f4(u[i, 2, c] + bias[2, c])
        for c in range(channels):  # tanh(x) = 2 sigma(2 x) - 1
            n[i, c] = f4(f4(2.0) * sigmoid(f4(f4(2.0) * (g[i, 2, c] + r[i, c] * m[i, c]))) - f4(1.0))
        for c in range(channels):
            h[i, c] = f4(n[i, c] + z[i, c] * (before[i, c] - n[i, c]))


@compiled
def gates_backward(d: Any, before: Any, r: Any, z: Any, n: Any, m: Any, d_u: Any, d_before: Any) -> None:
    """From d [B, C], the gradient of h, that of u: d_u [B, 3, C]. n becomes the gradient of g_n; those of g_r and g_z
    are those of u_r and u_z. `d_before` gets the part that does not go through the products, added."""
    rows, channels = d.shape
    for i in range(rows):
        for c in range(channels):
            d_u[i, 1, c] = f4(d[i, c] * (before[i, c] - n[i, c]) * z[i, c] * (f4(1.0) - z[i, c]))
        for c in range(channels):
            d_before[i, c] += d[i, c] * z[i, c]
        for c in range(channels):
            n[i, c] = f4(d[i, c] * (f4(1.0) - z[i, c]) * (f4(1.0) - n[i, c] * n[i, c]))
        for c in range(channels):
            d_u[i, 0, c] = f4(n[i, c] * m[i, c] * r[i, c] * (f4(1.0) - r[i, c]))
        for c in range(channels):
            d_u[i, 2, c] = f4(n[i, c] * r[i, c])
