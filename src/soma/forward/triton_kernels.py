"""Triton kernels for the GPU (`triton_engine`, and `triton_network`, which defines the padded layout they read).

Directions come from the counters of soma.forward.probes and are never stored. A block of the network is one kernel over
time (the LSTM) and one over rows (the MLP) up to a width of 32; wider blocks leave matrix products to the vendor's
library and only the operations between them to these kernels.

Shapes: P copies (if perturbed, S j + s is that of direction j and sign s), J directions, S signs, M parameters of a
body, N of its padded layout, B sequences (padded), T time steps of a chunk, R = T B rows in the order of time, D padded
and WIDTH true width, H padded embedding width, V = 256 bytes. Activations are [P, R, D]. Padding holds zeros and stays
zero.
"""
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from soma.models.lstm import LAYER_NORM_EPS

_NORM_EPS = tl.constexpr(LAYER_NORM_EPS)


# Probes. Counter words and keys arrive as int32 with the bits of the unsigned number.


@triton.jit
def _words(block, direction, update, expert, key_low, key_high):
    """Return the four Philox words of blocks of 64 coordinates."""
    zero = tl.zeros_like(block)
    return tl.random.philox_impl(
        block.to(tl.uint32, bitcast=True),
        (zero + direction).to(tl.uint32, bitcast=True),
        (zero + update).to(tl.uint32, bitcast=True),
        (zero + expert).to(tl.uint32, bitcast=True),
        (zero + key_low).to(tl.uint32, bitcast=True),
        (zero + key_high).to(tl.uint32, bitcast=True),
    )


@triton.jit
def _sign(i, always, direction, update, expert, key_low, key_high):
    """Return z of coordinates i in {-1, 0, 1}; `always` marks those that no probe zeroes.

    Each coordinate computes its whole block: 64 times the work, of a few microseconds, but without layout constraints.
    """
    first, first_sign, second, second_sign = _words(i // 64, direction, update, expert, key_low, key_high)
    lower = i % 64 < 32
    bit = (i % 32).to(tl.uint32)
    kept = (tl.where(lower, first, second) >> bit) & 1
    negative = (tl.where(lower, first_sign, second_sign) >> bit) & 1
    sign = 1 - 2 * negative.to(tl.int32)
    return tl.where((kept != 0) | always, sign, 0)


@triton.jit(do_not_specialize=["update", "expert", "key_low", "key_high"])
def packed_words(out, always, directions, update, expert, key_low, key_high, blocks, BLOCK: tl.constexpr):
    """Write the words of `forward.probes` to out [J, blocks, 4]; always [blocks, 2] marks what no probe zeroes."""
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    j = tl.program_id(1).to(tl.int64)
    inside = k < blocks
    direction = tl.load(directions + j)
    first, first_sign, second, second_sign = _words(k, direction, update, expert, key_low, key_high)
    first = first.to(tl.int32, bitcast=True) | tl.load(always + 2 * k, mask=inside, other=0)
    second = second.to(tl.int32, bitcast=True) | tl.load(always + 2 * k + 1, mask=inside, other=0)
    at = out + (j * blocks + k) * 4
    tl.store(at, first, mask=inside)
    tl.store(at + 1, first_sign.to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 2, second, mask=inside)
    tl.store(at + 3, second_sign.to(tl.int32, bitcast=True), mask=inside)


@triton.jit(do_not_specialize=["update", "expert", "key_low", "key_high"])
def perturb(copies, theta, source, gains, directions, steps, update, expert, key_low, key_high, N, BLOCK: tl.constexpr):
    """Write copies [J S, N] = theta + step_s z_j in the padded layout; one program per block, direction and sign.

    theta: padded body [N]; steps: sign times eps, float32 [S]; source: the coordinate in [0, M) of each padded one, -1
    for padding, [N]; gains: int8 [N], non-zero where no probe is zero.
    """
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    j = tl.program_id(1).to(tl.int64)
    s = tl.program_id(2)
    inside = n < N
    i = tl.load(source + n, mask=inside, other=-1)
    always = tl.load(gains + n, mask=inside, other=0) != 0
    z = _sign(tl.maximum(i, 0), always, tl.load(directions + j), update, expert, key_low, key_high)
    step = tl.load(steps + s) * tl.where(i < 0, 0, z).to(tl.float32)
    centre = tl.load(theta + n, mask=inside, other=0.0)
    tl.store(copies + (tl.num_programs(2) * j + s) * N + n, centre + step, mask=inside)


@triton.jit(do_not_specialize=["update", "key_low", "key_high"])
def combine(out, gains, coefficients, directions, experts, update, key_low, key_high, M, J, BLOCK: tl.constexpr):
    """Compute out [E, M] = sum_j c_j z_j in the order of j, float64, for coefficients [E, J].

    c z is exact, so a fused multiply-add rounds like the sum: the same bits on every device.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    e = tl.program_id(1).to(tl.int64)
    inside = i < M
    always = tl.load(gains + i, mask=inside, other=0) != 0
    expert = tl.load(experts + e)
    total = tl.zeros((BLOCK,), tl.float64)
    for j in range(J):
        z = _sign(i, always, tl.load(directions + j), update, expert, key_low, key_high)
        total += tl.load(coefficients + e * J + j) * z.to(tl.float64)
    tl.store(out + e * M + i, total, mask=inside)


# Elementwise. Exponents are never positive, so that none overflows.


@triton.jit
def _sigmoid(x):
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def _tanh(x):
    small = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - small) / (1.0 + small)
    return tl.where(x >= 0, size, -size)


@triton.jit
def _gelu(x):
    return 0.5 * x * (1.0 + tl.math.erf(x * 0.7071067811865476))


@triton.jit
def _norm(x, gain, column, WIDTH: tl.constexpr):
    """Apply LayerNorm to rows x over their first WIDTH columns; the gain of padding is zero."""
    mean = tl.sum(x, 1) * (1.0 / WIDTH)
    centred = tl.where(column[None, :] < WIDTH, x - mean[:, None], 0.0)
    variance = tl.sum(centred * centred, 1) * (1.0 / WIDTH)
    return centred * (1.0 / tl.sqrt(variance + _NORM_EPS))[:, None] * gain[None, :]


# Blocks up to a width of 32. Grid: (P, programs per copy). `weights` [P, N] is the padded body of each copy and `*_at`
# the place of a tensor in it; matrices are [in, out], so that a product reads x @ w.


@triton.jit
def lstm_layer(
    x_in,
    x_in_stride,
    x_out,
    hidden,
    cell,
    weights,
    N,
    gain_at,
    input_at,
    hidden_at,
    B,
    T,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute x_out = x_in + LSTM(LN(x_in)) over T steps; updates the state hidden, cell [P, B, D].

    A program keeps the weights of its copy and the state of TILE sequences throughout the time loop. Copies may share
    one input (x_in_stride 0), and the output may overwrite the input.
    """
    copy = tl.program_id(0).to(tl.int64)
    b = tl.program_id(1) * TILE + tl.arange(0, TILE)
    unit = tl.arange(0, D)
    w = weights + copy * N
    gain = tl.load(w + gain_at + unit)
    # One matrix per gate (order i, f, g, o): a product of all four would have to be split in every step.
    at = unit[:, None] * (4 * D) + unit[None, :]
    input_i = tl.load(w + input_at + at)
    input_f = tl.load(w + input_at + D + at)
    input_g = tl.load(w + input_at + 2 * D + at)
    input_o = tl.load(w + input_at + 3 * D + at)
    hidden_i = tl.load(w + hidden_at + at)
    hidden_f = tl.load(w + hidden_at + D + at)
    hidden_g = tl.load(w + hidden_at + 2 * D + at)
    hidden_o = tl.load(w + hidden_at + 3 * D + at)

    state = b[:, None] * D + unit[None, :]
    h = tl.load(hidden + copy * B * D + state)
    c = tl.load(cell + copy * B * D + state)
    source = x_in + copy * x_in_stride + state
    target = x_out + copy * T * B * D + state
    following = tl.load(source)
    for t in range(T):
        x = following
        following = tl.load(source + tl.minimum(t + 1, T - 1) * B * D)  # loaded early to hide its latency
        y = _norm(x, gain, unit, WIDTH)
        i = tl.dot(h, hidden_i, tl.dot(y, input_i, input_precision=PRECISION), input_precision=PRECISION)
        f = tl.dot(h, hidden_f, tl.dot(y, input_f, input_precision=PRECISION), input_precision=PRECISION)
        g = tl.dot(h, hidden_g, tl.dot(y, input_g, input_precision=PRECISION), input_precision=PRECISION)
        o = tl.dot(h, hidden_o, tl.dot(y, input_o, input_precision=PRECISION), input_precision=PRECISION)
        c = _sigmoid(f) * c + _sigmoid(i) * _tanh(g)
        h = _sigmoid(o) * _tanh(c)
        tl.store(target + t * B * D, x + h)
    tl.store(hidden + copy * B * D + state, h)
    tl.store(cell + copy * B * D + state, c)


@triton.jit
def mlp_layer(
    x,
    weights,
    N,
    gain_at,
    up_at,
    down_at,
    R,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute x += MLP(LN(x)) in place."""
    copy = tl.program_id(0).to(tl.int64)
    unit = tl.arange(0, D)
    inner = tl.arange(0, 4 * D)
    w = weights + copy * N
    gain = tl.load(w + gain_at + unit)
    up = tl.load(w + up_at + unit[:, None] * (4 * D) + inner[None, :])
    down = tl.load(w + down_at + inner[:, None] * D + unit[None, :])
    for first in range(tl.program_id(1) * TILE, R, tl.num_programs(1) * TILE):
        row = first + tl.arange(0, TILE)
        at = x + copy * R * D + row[:, None] * D + unit[None, :]
        inside = (row < R)[:, None]
        value = tl.load(at, mask=inside, other=0.0)
        wide = _gelu(tl.dot(_norm(value, gain, unit, WIDTH), up, input_precision=PRECISION))
        tl.store(at, tl.dot(wide, down, value, input_precision=PRECISION), mask=inside)


@triton.jit
def cross_entropy(
    losses,
    x,
    weights,
    N,
    gain_at,
    head,
    head_stride,
    targets,
    targets_stride,
    R,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    H: tl.constexpr,
    V: tl.constexpr,
    NORM: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute losses [P, R] = -log softmax(LN(x) head^T) at the targets, in nats; LN is skipped unless NORM.

    x: [P, R, D] with D <= H; head [V, H] and targets [R] of each copy, or of all (stride 0). Logits stay in registers.
    """
    copy = tl.program_id(0).to(tl.int64)
    feature = tl.arange(0, H)
    byte = tl.arange(0, V)
    decoder = tl.load(head + copy * head_stride + byte[None, :] * H + feature[:, None])
    stored = feature < D
    for first in range(tl.program_id(1) * TILE, R, tl.num_programs(1) * TILE):
        row = first + tl.arange(0, TILE)
        inside = row < R
        at = x + copy * R * D + row[:, None] * D + feature[None, :]
        h = tl.load(at, mask=inside[:, None] & stored[None, :], other=0.0)
        if NORM:
            gain = tl.load(weights + copy * N + gain_at + feature, mask=stored, other=0.0)
            h = _norm(h, gain, feature, WIDTH)
        logits = tl.dot(h, decoder, input_precision=PRECISION)
        top = tl.max(logits, 1)
        total = tl.sum(tl.exp(logits - top[:, None]), 1)
        target = tl.load(targets + copy * targets_stride + row, mask=inside, other=0).to(tl.int32)
        chosen = tl.sum(tl.where(byte[None, :] == target[:, None], logits, 0.0), 1)
        tl.store(losses + copy * R + row, tl.log(total) - (chosen - top), mask=inside)


# Any width: the operations between the matrix products of a wide expert. Grid: (programs per copy, P).


@triton.jit
def norm_rows(
    out, x, weights, N, gain_at, R, WIDTH: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr
):
    """Compute out = LN(x), both [P, R, D]; BLOCK is the power of two that holds D."""
    copy = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    unit = tl.arange(0, BLOCK)
    stored = unit < D
    gain = tl.load(weights + copy * N + gain_at + unit, mask=stored, other=0.0)
    at = copy * R * D + row[:, None] * D + unit[None, :]
    inside = (row < R)[:, None] & stored[None, :]
    value = tl.load(x + at, mask=inside, other=0.0)
    tl.store(out + at, _norm(value, gain, unit, WIDTH), mask=inside)


@triton.jit
def lstm_cell(gates, hidden, cell, x, gates_stride, x_stride, B, D: tl.constexpr, BLOCK: tl.constexpr):
    """Take one step from the gates of every copy, [B, 4D] each: update hidden, cell [P, B, D]; add hidden to x [B, D].

    gates_stride, x_stride: floats from one copy to the next.
    """
    copy = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = n < B * D
    at = gates + copy * gates_stride + (n // D) * (4 * D) + n % D
    i = tl.load(at, mask=inside, other=0.0)
    f = tl.load(at + D, mask=inside, other=0.0)
    g = tl.load(at + 2 * D, mask=inside, other=0.0)
    o = tl.load(at + 3 * D, mask=inside, other=0.0)
    state = copy * B * D + n
    c = _sigmoid(f) * tl.load(cell + state, mask=inside, other=0.0) + _sigmoid(i) * _tanh(g)
    h = _sigmoid(o) * _tanh(c)
    tl.store(cell + state, c, mask=inside)
    tl.store(hidden + state, h, mask=inside)
    residual = x + copy * x_stride + n
    tl.store(residual, tl.load(residual, mask=inside, other=0.0) + h, mask=inside)
