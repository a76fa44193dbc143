"""The gradient of a chain of layers in one call, compiled once for all networks: a table says which layers there are.

Images of a batch lie samples last, (channels, height, width · samples): a shift of all of them is another start of long
runs, and a convolution is a product of its kernels with shifted rows. Features lie samples first, (samples, features).
All numbers of a step are in one array ``a`` that stays in a core's cache: a large batch goes through it in shares.
"""

# Numba infers the types of parameters, from those of ``call``.
# pyright: reportMissingParameterType=false

from __future__ import annotations

import math

import numpy as np
from llvmlite.binding import get_host_cpu_features
from numba import njit, types
from numba.np.numpy_support import carray

from fedweave.local.compiled.table import B, C, D, H, K, L, O, P, Q, V, W, X, Y
from fedweave.local.compiled.table import CLASSIFY, FIRST, FIT, IMAGES, KIND, ONES, OTHER, OUT, OUTPUTS, ROOM, WHERE
from fedweave.local.compiled.table import (
    CONVOLUTION,
    DROPOUT,
    LAST,
    LINEAR,
    PAD_H,
    PAD_V,
    PADDED,
    POOL,
    RELU,
    STEP_H,
    STEP_V,
)
from fedweave.local.compiled.table import ACTIVATIONS, BATCHES, GRADIENT, LABELS, LARGEST, MODEL, NET, NUMBERS, OFFSETS
from fedweave.local.compiled.table import FACTORS, OUTCOME, SAMPLES, SCALE, SHIFT, SIZES, VALUES
from fedweave.local.compiled.table import COLUMNS, DIM, FEATURES, LAYERS, MOVE, OF_BYTES, OUTCOMES, STEPS, WIDTH
from fedweave.local.compiled.vectors import (
    LANES,
    add,
    copy,
    fill,
    largest,
    largest_back,
    multiply,
    rectify,
    rectify_back,
)
from fedweave.local.compiled.vectors import inner_products, product_rows

ZERO = np.float32(0)
_inner = njit(error_model="numpy")  # compiled when ``call`` is, as a part of it
# Literal numbers would make Numba compile a function once for each of them.
NO, YES, ONE = np.int64(0), np.int64(1), np.int64(1)
ADD, WRITE, STEP = np.int64(0), np.int64(1), np.int64(2)  # what becomes of a product


_wide = get_host_cpu_features().get("avx512f", False)  # 32 registers of 16 lanes, else 16 of 8
VECTORS, A_ROWS = (2, 4) if _wide else (1, 2)
COLUMNS_AT_ONCE = VECTORS * LANES
_rows_6, _rows_4, _rows_2, _row = (product_rows(rows, VECTORS, masked=False) for rows in (6, 4, 2, 1))
_last_6, _last_4, _last_2, _last = (product_rows(rows, 1, masked=True) for rows in (6, 4, 2, 1))
_many_3, _many_1 = inner_products(A_ROWS, 3), inner_products(A_ROWS, 1)
_one_3, _one_1 = inner_products(1, 3), inner_products(1, 1)


@_inner
def product(y, y0, y_row, rows, count, w, w0, w_row, w_tap, x, x0, offset, taps, how, lr):
    """y[r, v] += Σ_t w[r, t] x[offset[t] + v] for r < rows and v < count; or = or −= lr times it, as ``how`` says."""
    r = 0
    while r < rows:
        some = 6 if rows - r >= 6 else 4 if rows - r >= 4 else 2 if rows - r >= 2 else 1
        y1, w1, v = y0 + r * y_row, w0 + r * w_row, 0
        while v < count:
            left = count - v
            if left >= COLUMNS_AT_ONCE:
                if some == 6:
                    _rows_6(y, y1 + v, y_row, w, w1, w_row, w_tap, x, x0 + v, offset, taps, 0, how, lr)
                elif some == 4:
                    _rows_4(y, y1 + v, y_row, w, w1, w_row, w_tap, x, x0 + v, offset, taps, 0, how, lr)
                elif some == 2:
                    _rows_2(y, y1 + v, y_row, w, w1, w_row, w_tap, x, x0 + v, offset, taps, 0, how, lr)
                else:
                    _row(y, y1 + v, y_row, w, w1, w_row, w_tap, x, x0 + v, offset, taps, 0, how, lr)
                v += COLUMNS_AT_ONCE
            else:
                if some == 6:
                    _last_6(y, y1 + v, y_row, w, w1, w_row, w_tap, x, x0 + v, offset, taps, left, how, lr)
                elif some == 4:
                    _last_4(y, y1 + v, y_row, w, w1, w_row, w_tap, x, x0 + v, offset, taps, left, how, lr)
                elif some == 2:
                    _last_2(y, y1 + v, y_row, w, w1, w_row, w_tap, x, x0 + v, offset, taps, left, how, lr)
                else:
                    _last(y, y1 + v, y_row, w, w1, w_row, w_tap, x, x0 + v, offset, taps, left, how, lr)
                v += LANES
        r += some


@_inner
def add_inner_products(out, out0, out_a, out_b, a, a0, a_row, a_line, a_rows, b, b0, b_line, offset, b_rows, lines, n):
    """out[j, k] += Σ a[j, r, v] b[offset[k] + r, v] over r < lines and v < n, for j < a_rows and k < b_rows."""
    j = 0
    while j < a_rows:  # few rows of a stay in the nearest cache while all of b pass by
        js, k, a1 = A_ROWS if a_rows - j >= A_ROWS else 1, 0, a0 + j * a_row
        while k < b_rows:
            ks, o = 3 if b_rows - k >= 3 else 1, out0 + j * out_a + k * out_b
            if js > 1 and ks > 1:
                _many_3(out, o, out_a, out_b, a, a1, a_row, a_line, b, b0, b_line, offset, k, lines, n)
            elif js > 1:
                _many_1(out, o, out_a, out_b, a, a1, a_row, a_line, b, b0, b_line, offset, k, lines, n)
            elif ks > 1:
                _one_3(out, o, out_a, out_b, a, a1, a_row, a_line, b, b0, b_line, offset, k, lines, n)
            else:
                _one_1(out, o, out_a, out_b, a, a1, a_row, a_line, b, b0, b_line, offset, k, lines, n)
            k += ks
        j += js


@_inner
def linear(net, layer, p, a, offset, samples):
    """y[s, o] = b[o] + Σ_c W[o, c] x[s, c]."""
    n, outputs, y = net[layer, C], net[layer, O], net[layer, Y]
    for s in range(samples):
        offset[s] = s * n
        copy(p, net[layer, B], a, y + s * outputs, outputs)
    add_inner_products(
        a, y, ONE, outputs, p, net[layer, W], n, NO, outputs, a, net[layer, X], NO, offset, samples, ONE, n
    )  # fmt: skip


@_inner
def linear_back(net, layer, p, g, a, offset, d, to, samples, wanted, how, lr):
    """dW[o, c] += Σ_s d[s, o] x[s, c], db[o] += Σ_s d[s, o]; if wanted dx[s, c] = Σ_o d[s, o] W[o, c].

    Or dW is written, or only a step W ← W − lr dW is taken: as ``how`` says.
    """
    n, outputs = net[layer, C], net[layer, O]
    if wanted:
        for o in range(outputs):
            offset[o] = o * n
        product(a, to, n, samples, n, a, d, outputs, ONE, p, net[layer, W], offset, outputs, WRITE, lr)
    for s in range(samples):
        offset[s] = s * n
        add(a, d + s * outputs, g, net[layer, B], outputs)
    w = net[layer, W]
    product(p if how == STEP else g, w, n, outputs, n, a, d, ONE, outputs, a, net[layer, X], offset, samples, how, lr)


@_inner
def copy_inner(net, layer, a, padded, plain, samples, inwards):
    """Copy images into padded ones, or back."""
    high, wide, line = (
        net[layer, H] + 2 * net[layer, PAD_H],
        net[layer, V] + 2 * net[layer, PAD_V],
        net[layer, V] * samples,
    )
    for c in range(net[layer, C]):
        for r in range(net[layer, H]):
            inner = padded + ((c * high + r + net[layer, PAD_H]) * wide + net[layer, PAD_V]) * samples
            outer = plain + (c * net[layer, H] + r) * line
            copy(a, outer if inwards else inner, a, inner if inwards else outer, line)


@_inner
def find_taps(net, layer, offset, high, line_samples):
    """Write where the rows begin that each weight of a kernel is multiplied with; return how many there are."""
    t, samples = 0, line_samples
    wide = (net[layer, V] + 2 * net[layer, PAD_V]) * samples
    for c in range(net[layer, C]):
        for i in range(net[layer, K]):
            for j in range(net[layer, L]):
                offset[t] = (c * high + i) * wide + j * samples
                t += 1
    return t


@_inner
def convolution(net, layer, p, a, offset, samples):
    """y[o, r, q] = b[o] + Σ W[o, c, i, j] x[c, r + i, q + j], x padded by zeros."""
    high, wide = net[layer, H] + 2 * net[layer, PAD_H], (net[layer, V] + 2 * net[layer, PAD_V]) * samples
    x, y, run = net[layer, PADDED], net[layer, Y], net[layer, Q] * samples
    if x != net[layer, X]:
        fill(a, x, ZERO, net[layer, C] * high * wide)
        copy_inner(net, layer, a, x, net[layer, X], samples, YES)
    image, taps = net[layer, P] * run, find_taps(net, layer, offset, high, samples)
    for o in range(net[layer, O]):
        fill(a, y + o * image, p[net[layer, B] + o], image)
    for r in range(net[layer, P]):
        product(
            a, y + r * run, image, net[layer, O], run, p, net[layer, W], taps, ONE, a, x + r * wide, offset, taps,
            ADD, ZERO,
        )  # fmt: skip


@_inner
def convolution_back(net, layer, numbers, p, g, a, offset, d, to, samples, wanted):
    """Add the derivatives by W and b; if wanted write those by x: each shift brought back to where it came from."""
    high, wide = net[layer, H] + 2 * net[layer, PAD_H], (net[layer, V] + 2 * net[layer, PAD_V]) * samples
    x, run, outputs = net[layer, PADDED], net[layer, Q] * samples, net[layer, O]
    image, lines = net[layer, P] * run, net[layer, P]
    offset[0] = 0
    add_inner_products(
        g, net[layer, B], ONE, NO, a, d, image, run, outputs, a, numbers[ONES], NO, offset, ONE, lines, run
    )
    taps = find_taps(net, layer, offset, high, samples)
    add_inner_products(g, net[layer, W], taps, ONE, a, d, image, run, outputs, a, x, wide, offset, taps, lines, run)
    if not wanted:
        return
    for o in range(outputs):
        offset[o] = o * image
    padded, window = to if x == net[layer, X] else numbers[ROOM], net[layer, K] * net[layer, L]
    fill(a, padded, ZERO, net[layer, C] * high * wide)
    for r in range(lines):
        for i in range(net[layer, K]):
            for j in range(net[layer, L]):
                w = net[layer, W] + i * net[layer, L] + j
                product(
                    a, padded + (r + i) * wide + j * samples, high * wide, net[layer, C], run,
                    p, w, window, net[layer, C] * window, a, d + r * run, offset, outputs, ADD, ZERO,
                )  # fmt: skip
    if padded != to:
        copy_inner(net, layer, a, padded, to, samples, NO)


@_inner
def pool(net, layer, a, where, d, to, samples, back):
    """y = the largest of each window, the first of equals; or back, the derivatives d by y to those by x."""
    height, width = net[layer, H], net[layer, V]
    if back:
        fill(a, to, ZERO, net[layer, C] * height * width * samples)
    for c in range(net[layer, C]):
        for r in range(net[layer, P]):
            top = r * net[layer, STEP_H] - net[layer, PAD_H]
            first, end = max(top, 0), min(top + net[layer, K], height)
            for q in range(net[layer, Q]):
                left = q * net[layer, STEP_V] - net[layer, PAD_V]
                start, stop = max(left, 0), min(left + net[layer, L], width)
                out = ((c * net[layer, P] + r) * net[layer, Q] + q) * samples
                x = ((c * height + first) * width + start) * samples
                rows, columns, place = end - first, stop - start, net[layer, WHERE] + out
                if back:
                    largest_back(a, to + x, rows, columns, width * samples, samples, d + out, where, place, samples)
                else:
                    y = net[layer, Y] + out
                    largest(a, net[layer, X] + x, rows, columns, width * samples, samples, y, where, place, samples)


@_inner
def drop(net, layer, a, at, factors, begin, samples, size):
    """Multiply numbers, or derivatives, of samples from ``begin`` on in a batch of this size by a dropout's factors."""
    n, first = net[layer, C], net[layer, WHERE] * size
    if net[layer, LAST]:
        for f in range(n):
            multiply(factors, first + f * size + begin, a, at + f * samples, samples)
    else:
        multiply(factors, first + begin * n, a, at, samples * n)


@_inner
def transpose(a, source, to, rows, columns):
    """(rows, columns) → (columns, rows)."""
    for i in range(rows):
        for j in range(columns):
            a[to + j * rows + i] = a[source + i * columns + j]


@_inner
def head(numbers, a, samples, labels, values, batch, begin, weight):
    """Return the loss of samples, each with this weight, and its square; write its derivatives by the outputs.

    Cross-entropy of labels, or the squared error of the one output to a value.
    """
    loss, squared, outputs = 0.0, 0.0, numbers[OUTPUTS]
    for s in range(samples):
        z, d = numbers[OUT] + s * outputs, numbers[D] + s * outputs
        if not numbers[CLASSIFY]:
            error = np.float64(a[z]) - values[batch[begin + s]]
            square = error * error
            loss += weight * square
            squared += weight * square * square
            a[d] = 2 * weight * error
            continue
        top, total, label = a[z], 0.0, labels[batch[begin + s]]
        for k in range(1, outputs):
            top = max(top, a[z + k])
        for k in range(outputs):
            total += math.exp(np.float64(a[z + k] - top))
        gain = np.float64(a[z + label] - top) - math.log(total)  # of the sample: minus its loss
        loss -= weight * gain
        squared += weight * gain * gain
        for k in range(outputs):
            a[d + k] = weight * (math.exp(np.float64(a[z + k] - top)) / total - (1.0 if k == label else 0.0))
    return loss, squared


@_inner
def forward(net, numbers, p, a, offset, where, factors, begin, samples, size):
    """Compute the outputs of samples whose inputs are in the room; a batch of size 0 is measured, without dropout."""
    for layer in range(len(net)):
        kind, x = net[layer, KIND], net[layer, X]
        if kind == LINEAR:
            linear(net, layer, p, a, offset, samples)
        elif kind == CONVOLUTION:
            convolution(net, layer, p, a, offset, samples)
        elif kind == POOL:
            pool(net, layer, a, where, NO, NO, samples, NO)
        elif kind == RELU:
            rectify(a, x, net[layer, C] * samples)
        elif kind == DROPOUT:
            if size:
                drop(net, layer, a, x, factors, begin, samples, size)
        else:
            transpose(a, x, net[layer, Y], net[layer, C], samples)


@_inner
def backward(net, numbers, p, g, a, offset, where, factors, begin, samples, size, how, lr):
    """Add the gradient of samples, given the derivatives by outputs; ``how`` is for the weights of linear layers."""
    d, other, first = numbers[D], numbers[OTHER], numbers[FIRST]
    for layer in range(len(net) - 1, first - 1, -1):
        kind = net[layer, KIND]
        if kind == RELU:
            rectify_back(a, net[layer, X], d, net[layer, C] * samples)
            continue
        if kind == DROPOUT:
            drop(net, layer, a, d, factors, begin, samples, size)
            continue
        if kind == LINEAR:
            linear_back(net, layer, p, g, a, offset, d, other, samples, layer > first, how, lr)
        elif kind == CONVOLUTION:
            convolution_back(net, layer, numbers, p, g, a, offset, d, other, samples, layer > first)
        elif kind == POOL:
            pool(net, layer, a, where, d, other, samples, YES)
        else:
            transpose(a, d, other, samples, net[layer, C])
        d, other = other, d


@_inner
def gather(numbers, a, x, raw, scale, shift, batch, begin, samples):
    """Copy samples to where the first layer reads them; raw bytes are scaled."""
    n = max(x.shape[1], raw.shape[1])
    for s in range(samples):
        row = batch[begin + s]
        start, step = (s, samples) if numbers[IMAGES] else (s * n, 1)
        if raw.size:
            for f in range(n):
                a[start + f * step] = raw[row, f] * scale[f] + shift[f]
        else:
            for f in range(n):
                a[start + f * step] = x[row, f]


@_inner
def squared_length(g):
    """Return Σ g², in four sums that do not wait for each other."""
    a, b, c, d, whole = 0.0, 0.0, 0.0, 0.0, g.size // 4 * 4
    for i in range(0, whole, 4):
        a += np.float64(g[i]) ** 2
        b += np.float64(g[i + 1]) ** 2
        c += np.float64(g[i + 2]) ** 2
        d += np.float64(g[i + 3]) ** 2
    for i in range(whole, g.size):
        a += np.float64(g[i]) ** 2
    return (a + b) + (c + d)


@_inner
def train(
    net, numbers, p, g, a, offset, where, x, raw, labels, values, scale, shift, batches, sizes, lr, move, out, factors
):
    """Take a step p ← p − lr g on each batch; return four numbers.

    The sum of the batches' losses, the length of the first gradient, the first loss, and the sum of squared losses.

    The samples are the rows of ``x``, or raw bytes, which are scaled. With one batch and ``move`` off only the
    gradient is left in ``g``. With room for them in ``out`` only the network's outputs are written there, without
    dropout. The factors of a dropout are those of one batch.
    """
    total, square, first, squares, done = 0.0, 0.0, 0.0, 0.0, 0
    for t in range(len(sizes)):
        at_once = move and t > 0 and sizes[t] <= numbers[FIT]  # weights can step as soon as their gradients are known
        for layer in range(len(net)):  # linear weights are written
            w, b = net[layer, W], net[layer, B]
            start = b if net[layer, KIND] == LINEAR else w
            fill(g, start, ZERO, b + net[layer, O] - start if net[layer, KIND] <= CONVOLUTION else NO)
        for begin in range(0, sizes[t], numbers[FIT]):
            samples = min(numbers[FIT], sizes[t] - begin)
            gather(numbers, a, x, raw, scale, shift, batches[t], begin, samples)
            forward(net, numbers, p, a, offset, where, factors, begin, samples, 0 if out.size else sizes[t])
            if out.size:
                for i in range(samples * numbers[OUTPUTS]):
                    out[done + i] = a[numbers[OUT] + i]
                done += samples * numbers[OUTPUTS]
                continue
            loss, squared = head(numbers, a, samples, labels, values, batches[t], begin, 1 / sizes[t])
            total += loss
            squares += squared
            how = STEP if at_once else WRITE if begin == 0 else ADD
            backward(net, numbers, p, g, a, offset, where, factors, begin, samples, sizes[t], how, lr)
        if t == 0:
            square, first = squared_length(g), total
        if move:
            for layer in range(len(net)):
                stepped, b = at_once and net[layer, KIND] == LINEAR, net[layer, B]
                end = b + net[layer, O] if net[layer, KIND] <= CONVOLUTION else NO
                for i in range(b if stepped else net[layer, W], end):
                    p[i] -= lr * g[i]
    return total, math.sqrt(square), first, squares


def call(floats, integers, raw, sizes, lr):
    """Do ``train`` on the arrays of one block of addresses and sizes (table.py), which is read in four ways.

    Where ``train`` does not ask for a length, it is given as 1.
    """
    dim, steps, features, of_bytes = sizes[DIM], sizes[STEPS], sizes[FEATURES], sizes[OF_BYTES]
    return train(
        carray(integers[NET], (sizes[LAYERS], COLUMNS)), carray(integers[NUMBERS], 1), carray(floats[MODEL], dim),
        carray(floats[GRADIENT], dim), carray(floats[ACTIVATIONS], 1), carray(integers[OFFSETS], 1),
        carray(floats[LARGEST], 1), carray(floats[SAMPLES], (1 - of_bytes, features)),
        carray(raw[SAMPLES], (of_bytes, features)), carray(integers[LABELS], 1), carray(floats[VALUES], 1),
        carray(floats[SCALE], 1), carray(floats[SHIFT], 1), carray(integers[BATCHES], (steps, sizes[WIDTH])),
        carray(integers[SIZES], steps), lr, sizes[MOVE] != 0, carray(floats[OUTCOME], sizes[OUTCOMES]),
        carray(floats[FACTORS], 1),
    )  # fmt: skip


_floats, _integers, _raw = (types.CPointer(types.CPointer(kind)) for kind in (types.float32, types.int64, types.uint8))
SIGNATURE = types.UniTuple(types.float64, 4)(_floats, _integers, _raw, types.CPointer(types.int64), types.float32)
