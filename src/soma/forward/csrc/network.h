// The LSTM expert of soma.models.lstm, one perturbed copy at a time, the whole network per time step.
//
// A tile is LANES = NV * VL sequences; its activations are [feature][lane]. Matrices are packed once per copy into
// panels of ROWS rows, [row / ROWS][column][ROWS], with the gain of the preceding LayerNorm folded in. Padded rows are
// zero and keep padded features zero.
//
// Shapes: B sequences, T time steps, D width, H embedding width, L depth, V = 256 bytes, M parameters.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "simd.h"

namespace soma {

constexpr int VOCABULARY = 256, GATES = 4, UNITS = ROWS / GATES;
constexpr float LAYER_NORM_EPS = 1e-5f;
constexpr float LOGIT_LIMIT = 80.0f;  // nats; a sum of 256 exponentials of it does not overflow

constexpr int64_t padded(int64_t n, int64_t to = ROWS) { return (n + to - 1) / to * to; }

struct Sizes {
    int width, depth, embedding;
    bool projected() const { return width != embedding; }
    int width_rows() const { return static_cast<int>(padded(width)); }
    int embedding_rows() const { return static_cast<int>(padded(embedding)); }
    // Time steps that a layer computes before the next layer does: several if the blocks' weights, 64 bytes for each of
    // depth width^2, are more than the cache of a core holds.
    int64_t steps() const { return int64_t{depth} * width * width * 64 > (int64_t{4} << 20) ? 8 : 1; }
};

// Zeroed memory, aligned to the widest vector.
class Buffer {
  public:
    explicit Buffer(size_t floats = 0) {
        if (!floats) return;
        const size_t bytes = padded(floats * sizeof(float), 64);
        data_.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
        if (!data_) throw std::bad_alloc();
        std::memset(data_.get(), 0, bytes);
    }
    operator float*() const { return data_.get(); }

  private:
    struct Free {
        void operator()(float* p) const { std::free(p); }
    };
    std::unique_ptr<float, Free> data_;
};

// ------------------------------------------------------------------------------------------- primitives of a tile

// Products of a panel with a tile. A narrow tile (NV = 1) runs two panels at once, so that there are enough independent
// sums to hide the latency of a multiply-add.
template <int NV>
using Panel = Vec[ROWS][NV];
template <int NV>
constexpr int PANELS = NV == 1 ? 2 : 1;

// Computes a[p] += W x for P consecutive panels: w [P][K][ROWS], x [K][lane].
template <int P, int NV>
INLINE void accumulate(const float* __restrict w, int64_t K, const float* __restrict x, Panel<NV> (&a)[P]) {
    const int64_t next = K * ROWS;
    for (int64_t k = 0; k < K; ++k, w += ROWS, x += NV * VL) {
        Vec in[NV];
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) in[v] = load(x + v * VL);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p)
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
                for (int v = 0; v < NV; ++v) a[p][r][v] = fma(splat(w[p * next + r]), in[v], a[p][r][v]);
    }
}

// Calls use(P, first row) for all rows, P panels of ROWS rows at a time and single panels at the end.
template <int NV, class Use>
INLINE void each_panel(int rows, Use use) {
    constexpr int P = PANELS<NV>;
    int row = 0;
    for (; row + P * ROWS <= rows; row += P * ROWS) use(std::integral_constant<int, P>(), row);
    if constexpr (P > 1)
        for (; row < rows; row += ROWS) use(std::integral_constant<int, 1>(), row);
}

// Calls use(offset in memory, four vectors) for the accumulators of P panels.
template <int P, int NV, class Use>
INLINE void each_four(const Panel<NV> (&a)[P], Use use) {
#pragma GCC unroll 16
    for (int i = 0; i < P * ROWS * NV; i += 4) {
        Vec part[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) part[j] = a[(i + j) / NV / ROWS][(i + j) / NV % ROWS][(i + j) % NV];
        use(i * VL, part);
    }
}

// Calls use(i, offset in memory, four vectors) for W x of n columns x, `stride` apart, with W (rows x K) in panels, each
// of which is read once.
template <int NV, class Use>
INLINE void matmuls(const float* w, int rows, int64_t K, int n, const float* x, int64_t stride, Use use) {
    each_panel<NV>(rows, [&](auto panels, int row) INLINED {
        for (int i = 0; i < n; ++i) {
            Panel<NV> a[panels()] = {};
            accumulate(w + row * K, K, x + i * stride, a);
            each_four(a, [&](int at, Vec(&part)[4]) INLINED { use(i, row * NV * VL + at, part); });
        }
    });
}

// Calls use(offset in memory, four vectors) for W x.
template <int NV, class Use>
INLINE void matmul(const float* w, int rows, int64_t K, const float* x, Use use) {
    matmuls<NV>(w, rows, K, 1, x, 0, [&](int, int at, Vec(&part)[4]) INLINED { use(at, part); });
}

INLINE void store_four(float* p, const Vec (&a)[4]) {
    for (int i = 0; i < 4; ++i) store(p + i * VL, a[i]);
}

// Computes y = W x.
template <int NV>
INLINE void multiply(const float* w, int rows, int64_t K, const float* x, float* y) {
    matmul<NV>(w, rows, K, x, [&](int at, Vec(&part)[4]) INLINED { store_four(y + at, part); });
}

// Sets y[k][lane] to column k of the row of `table` at the lane's byte; n columns, a multiple of 4.
template <int NV>
INLINE void gather(const float* table, int64_t stride, int n, const uint8_t* bytes, float* y) {
    constexpr int LANES = NV * VL;
    const float* row[LANES];
    for (int i = 0; i < LANES; ++i) row[i] = table + bytes[i] * stride;
    for (int k = 0; k < n; k += 4, y += 4 * LANES)
#pragma GCC unroll 4
        for (int v = 0; v < LANES; v += VL) store_columns(row + v, k, y + v, LANES);
}

// The inverse: writes row i of a table of n columns from lane i.
template <int NV>
INLINE void scatter(const float* y, int n, float* table) {
    constexpr int LANES = NV * VL;
    for (int i = 0; i < LANES; i += 4)
        for (int k = 0; k < n; k += 4) {
            Quad m[4];
            for (int j = 0; j < 4; ++j) m[j] = *reinterpret_cast<const Quad*>(y + (k + j) * LANES + i);
            transpose(m);
            for (int j = 0; j < 4; ++j) *reinterpret_cast<Quad*>(table + int64_t{i + j} * n + k) = m[j];
        }
}

// Accumulates total = f(f(0, feature 0), feature 1), ... over n features of x in every lane, in two interleaved parts
// that are added at the end, since each addition waits for the previous one.
template <int NV, class F>
INLINE void sum_features(const float* x, int n, F f, Vec (&total)[NV]) {
    Vec odd[NV] = {};
    for (int v = 0; v < NV; ++v) total[v] = Vec{};
    int k = 0;
    for (; k + 1 < n; k += 2, x += 2 * NV * VL)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) {
            total[v] = f(total[v], load(x + v * VL), v);
            odd[v] = f(odd[v], load(x + (NV + v) * VL), v);
        }
    for (int v = 0; v < NV; ++v) {
        if (k < n) total[v] = f(total[v], load(x + v * VL), v);
        total[v] += odd[v];
    }
}

// Applies LayerNorm over n features; without a gain if the next matrix includes it.
template <int NV>
INLINE void layer_norm(const float* __restrict x, int n, const float* gain, float* __restrict y) {
    Vec mean[NV], scale[NV];
    sum_features<NV>(x, n, [](Vec sum, Vec a, int) { return sum + a; }, mean);
    for (int v = 0; v < NV; ++v) mean[v] *= 1.0f / n;
    sum_features<NV>(x, n, [&](Vec sum, Vec a, int v) { return fma(a - mean[v], a - mean[v], sum); }, scale);
    for (int v = 0; v < NV; ++v) scale[v] = reciprocal_root(fma(scale[v], 1.0f / n, LAYER_NORM_EPS));
    for (int k = 0; k < n; ++k)
        for (int v = 0; v < NV; ++v, x += VL, y += VL) {
            const Vec a = (load(x) - mean[v]) * scale[v];
            store(y, gain ? a * gain[k] : a);
        }
}

// ------------------------------------------------------------------------------------------- weights of a copy

class Weights {
  public:
    explicit Weights(const Sizes& s)
        : s_(s), blocks_(s.depth), x_(s.width_rows() * 2 * VL), norm_(s.width_rows() * 2 * VL),
          wide_(std::max(GATES * s.width_rows(), s.embedding_rows()) * 2 * VL) {
        const int64_t d = s.width, dp = s.width_rows(), h = s.embedding, hp = s.embedding_rows();
        for (Block& b : blocks_) {
            b.gates_input = Buffer(GATES * dp * d);
            b.gates_hidden = Buffer(GATES * dp * d);
            b.up = Buffer(padded(4 * d) * d);
            b.down = Buffer(dp * 4 * d);
        }
        head = Buffer(VOCABULARY * hp);
        decoder = Buffer(VOCABULARY * h);
        gain = Buffer(dp);
        first_gates = Buffer(VOCABULARY * GATES * dp);
        if (s.projected()) {
            project_in = Buffer(dp * h);
            project_out = Buffer(hp * d);
            inputs = Buffer(VOCABULARY * dp);
        }
    }

    // Packs theta, a flat body [M] in the order of LSTMSpec.layout, and E, a head [V, H].
    void pack(const float* theta, const float* E) {
        const int64_t d = s_.width, h = s_.embedding;
        const auto take = [&theta](int64_t n) { return std::exchange(theta, theta + n); };
        if (s_.projected()) panels(take(d * h), d, h, nullptr, 1, project_in);
        for (Block& b : blocks_) {
            const float* gain_lstm = take(d);
            gates(take(GATES * d * d), gain_lstm, b.gates_input);
            gates(take(GATES * d * d), nullptr, b.gates_hidden);
            const float* gain_mlp = take(d);
            panels(take(4 * d * d), 4 * d, d, gain_mlp, 1, b.up);
            panels(take(4 * d * d), d, 4 * d, nullptr, 1, b.down);
        }
        std::memcpy(gain, take(d), sizeof(float) * d);
        if (s_.projected()) panels(take(h * d), h, d, nullptr, 1, project_out);
        panels(E, VOCABULARY, h, nullptr, LOG2_E, decoder);
        for (int b = 0; b < VOCABULARY; ++b) std::memcpy(head + b * s_.embedding_rows(), E + b * h, sizeof(float) * h);
        safe_square = LOGIT_LIMIT * LOGIT_LIMIT / largest_square(E, h);
        tabulate();
    }

    struct Block {
        Buffer gates_input, gates_hidden, up, down;
    };
    const Block& block(int l) const { return blocks_[l]; }

    Buffer project_in, project_out, decoder;
    Buffer head;         // rows of E, padded, [V][embedding_rows]
    Buffer inputs;       // x of every byte if it is not a row of E, [V][width_rows]
    Buffer first_gates;  // input part of block 0's gates for every byte, [V][GATES width_rows]
    Buffer gain;         // of the last LayerNorm
    float safe_square;   // limit of |o|^2, below which no logit exceeds LOGIT_LIMIT

  private:
    template <class Row>
    static void panels_of(int64_t rows, int64_t K, const float* gain, Row source, float* out) {
        for (int64_t first = 0; first < rows; first += ROWS) {
            const float* row[ROWS];
            float scale[ROWS];
            for (int r = 0; r < ROWS; ++r) row[r] = source(first + r, scale[r]);
            int64_t k = 0;
            for (; k + 4 <= K; k += 4, out += 4 * ROWS) {
                const Quad gains = gain ? four(gain + k) : Quad{} + 1.0f;
                for (int r = 0; r < ROWS; r += 4) {
                    Quad m[4];
                    for (int j = 0; j < 4; ++j) m[j] = row[r + j] ? four(row[r + j] + k) * gains * scale[r + j] : Quad{};
                    transpose(m);
                    for (int j = 0; j < 4; ++j) *reinterpret_cast<Quad*>(out + j * ROWS + r) = m[j];
                }
            }
            for (; k < K; ++k)
                for (int r = 0; r < ROWS; ++r) *out++ = row[r] ? row[r][k] * (gain ? gain[k] : 1.0f) * scale[r] : 0.0f;
        }
    }

    static void panels(const float* W, int64_t rows, int64_t K, const float* gain, float factor, float* out) {
        const auto source = [=](int64_t r, float& scale) { return scale = factor, r < rows ? W + r * K : nullptr; };
        panels_of(padded(rows), K, gain, source, out);
    }

    // A panel holds the four gates of UNITS units, gate by gate. The factor -log2(e) turns exp(-x) into a power of two,
    // and the candidate's tanh(x) is 2 sigmoid(2 x) - 1.
    void gates(const float* W, const float* gain, float* out) const {
        const int64_t d = s_.width;
        const auto source = [=](int64_t r, float& scale) -> const float* {
            const int64_t gate = r % ROWS / UNITS, unit = r / ROWS * UNITS + r % UNITS;
            scale = gate == 2 ? -2 * LOG2_E : -LOG2_E;
            return unit < d ? W + (gate * d + unit) * d : nullptr;
        };
        panels_of(GATES * s_.width_rows(), d, gain, source, out);
    }

    static float largest_square(const float* E, int64_t h) {
        float largest = 1e-30f;
        for (int b = 0; b < VOCABULARY; ++b, E += h) {
            float sum = 0;
            for (int64_t k = 0; k < h; ++k) sum += E[k] * E[k];
            largest = std::max(largest, sum);
        }
        return largest;
    }

    // Computes everything that depends on the byte alone, once per copy, with the bytes as lanes.
    void tabulate() {
        constexpr int NV = 2, LANES = NV * VL;
        const int dp = s_.width_rows(), hp = s_.embedding_rows();
        for (int first = 0; first < VOCABULARY; first += LANES) {
            uint8_t bytes[LANES];
            for (int i = 0; i < LANES; ++i) bytes[i] = static_cast<uint8_t>(first + i);
            if (s_.projected()) {
                gather<NV>(head, hp, hp, bytes, wide_);
                multiply<NV>(project_in, dp, s_.embedding, wide_, x_);
                scatter<NV>(x_, dp, inputs + int64_t{first} * dp);
            } else {
                gather<NV>(head, hp, hp, bytes, x_);
            }
            layer_norm<NV>(x_, s_.width, nullptr, norm_);
            multiply<NV>(blocks_[0].gates_input, GATES * dp, s_.width, norm_, wide_);
            scatter<NV>(wide_, GATES * dp, first_gates + int64_t{first} * GATES * dp);
        }
    }

    Sizes s_;
    std::vector<Block> blocks_;
    Buffer x_, norm_, wide_;  // scratch for tabulate
};

// ------------------------------------------------------------------------------------------- one time step

// Computes LSTM cells from their pre-activations times -log2(e) (the candidate's times -2 log2(e)): with e = 2^these,
// c' = c / (1 + e_f) + (1 - e_g) / ((1 + e_i) (1 + e_g)) over a common denominator and h = tanh(c') / (1 + e_o).
// Arguments are clamped at +-40, where a float32 sigmoid is 0 or 1 to 1e-12 and no product overflows.
template <int N>
INLINE void gate(Vec (&a)[N]) {
    EACH_VECTOR a[i] = clamp(a[i], -40.0f, 40.0f);
    exp2(a);
}

template <int N>
INLINE void cells(Vec (&in)[N], Vec (&forget)[N], Vec (&candidate)[N], Vec (&output)[N], Vec (&c)[N], Vec (&h)[N]) {
    gate(in);
    gate(candidate);
    gate(forget);
    EACH_VECTOR in[i] = (1.0f + in[i]) * (1.0f + candidate[i]);
    EACH_VECTOR forget[i] += 1.0f;
    EACH_VECTOR candidate[i] = fma(1.0f - candidate[i], forget[i], c[i] * in[i]);
    EACH_VECTOR in[i] *= forget[i];
    reciprocal(in);
    EACH_VECTOR c[i] = candidate[i] * in[i];
    EACH_VECTOR h[i] = c[i] * (-2 * LOG2_E);
    gate(h);
    gate(output);
    EACH_VECTOR output[i] = (1.0f + h[i]) * (1.0f + output[i]);
    reciprocal(output);
    EACH_VECTOR h[i] = (1.0f - h[i]) * output[i];
}

// Activations and states of up to LANES sequences, with the operations of up to Sizes::steps() time steps at once.
//
// A layer finishes all steps before the next one begins, and only its recurrence goes through them one by one: the
// other matrices are read once for all steps. The order of every sum is that of single steps.
template <int NV>
class Tile {
  public:
    static constexpr int LANES = NV * VL;

    Tile(const Sizes& s, const Weights& w)
        : s_(s), w_(w), x_(s.steps() * rows(1)), norm_(s.steps() * rows(1)), wide_(s.steps() * rows(GATES)),
          spare_(rows(1)), out_(s.steps() * s.embedding_rows() * LANES), target_(s.embedding_rows() * LANES) {
        for (int l = 0; l < s.depth; ++l) {
            h_.emplace_back(rows(1));
            c_.emplace_back(rows(1));
        }
    }

    // Starts a window with the zero state for `count` sequences, in rows of `stride` bytes.
    void start(const uint8_t* tokens, int64_t stride, int count) {
        tokens_ = tokens, stride_ = stride, count_ = count;
        for (int l = 0; l < s_.depth; ++l) {
            std::memset(h_[l], 0, sizeof(float) * rows(1));
            std::memset(c_[l], 0, sizeof(float) * rows(1));
        }
    }

    // Computes everything up to the decoder's inputs, for the bytes at times t, t + 1, ...
    void body(int64_t t, int steps) {
        const int dp = s_.width_rows();
        for (int i = 0; i < steps; ++i) {
            uint8_t bytes[LANES];
            bytes_at(t + i, bytes);
            gather<NV>(s_.projected() ? w_.inputs : w_.head, dp, dp, bytes, x(i));
            gather<NV>(w_.first_gates, GATES * dp, GATES * dp, bytes, wide(i));
        }
        for (int l = 0; l < s_.depth; ++l) {
            lstm(l, steps);
            mlp(l, steps);
        }
        for (int i = 0; i < steps; ++i) layer_norm<NV>(x(i), s_.width, w_.gain, s_.projected() ? norm(i) : out(i));
        if (s_.projected())
            matmuls<NV>(w_.project_out, s_.embedding_rows(), s_.width, steps, norm_, rows(1),
                        [&](int i, int at, Vec(&part)[4]) INLINED { store_four(out(i) + at, part); });
    }

    // Computes the loss of the byte at t + i + 1 in every lane, after body(t, ..): logsumexp(logits) - target logit. No
    // logit exceeds |out| max |E_v|; if that bound is safe, the exponentials need no shift. Otherwise a first pass
    // finds the largest logit of each lane.
    void decode(int64_t t, int i, double (&loss)[LANES]) {
        const float* out = this->out(i);
        uint8_t bytes[LANES];
        bytes_at(t + i + 1, bytes);
        gather<NV>(w_.head, s_.embedding_rows(), s_.embedding_rows(), bytes, target_);
        Vec square[NV], target[NV], shift[NV] = {}, sum[NV] = {};
        dot(out, out, square);
        dot(out, target_, target);
        if (unsafe(square)) {
            largest_logit(out, square, shift);
            logits(out, [&](int, Vec(&y)[4]) INLINED {
                for (int i = 0; i < 4; ++i) y[i] = max(y[i] - shift[i % NV], splat(-120.0f));
                exp2(y);
                for (int i = 0; i < 4; ++i) sum[i % NV] += y[i];
            });
        } else {
            logits(out, [&](int, Vec(&y)[4]) INLINED {
                exp2(y);
                for (int i = 0; i < 4; ++i) sum[i % NV] += y[i];
            });
        }
        for (int v = 0; v < NV; ++v) {
            const Vec rest = fma(shift[v], splat(1 / LOG2_E), -target[v]);
            const Wide nats = logarithm(sum[v]) + __builtin_convertvector(rest, Wide);
            std::memcpy(loss + v * VL, &nats, sizeof nats);
        }
    }

    // Copies the decoder's input at step i of one lane, [H].
    void hidden(int i, int lane, float* row) const {
        for (int k = 0; k < s_.embedding; ++k) row[k] = out(i)[k * LANES + lane];
    }

  private:
    int rows(int matrices) const { return matrices * s_.width_rows() * LANES; }

    // What belongs to step i.
    float* x(int64_t i) const { return x_ + i * rows(1); }
    float* norm(int64_t i) const { return norm_ + i * rows(1); }
    float* wide(int64_t i) const { return wide_ + i * rows(GATES); }
    float* out(int64_t i) const { return out_ + i * s_.embedding_rows() * LANES; }

    // Lanes without a sequence process byte 0 and are never read.
    void bytes_at(int64_t t, uint8_t (&bytes)[LANES]) const {
        for (int i = 0; i < LANES; ++i) bytes[i] = i < count_ ? tokens_[i * stride_ + t] : 0;
    }

    void lstm(int l, int steps) {
        const int64_t d = s_.width;
        const Weights::Block& w = w_.block(l);
        const bool together = l && steps == 1;  // both products of the gates
        for (int i = 0; l && i < steps; ++i) layer_norm<NV>(x(i), s_.width, nullptr, norm(i));
        if (l && !together)
            matmuls<NV>(w.gates_input, GATES * s_.width_rows(), d, steps, norm_, rows(1),
                        [&](int i, int at, Vec(&part)[4]) INLINED { store_four(wide(i) + at, part); });
        for (int i = 0; i < steps; ++i) {
            each_panel<NV>(GATES * s_.width_rows(), [&](auto panels, int row) INLINED {
                Panel<NV> a[panels()] = {};
                if (together)
                    accumulate(w.gates_input + row * d, d, static_cast<const float*>(norm_), a);
                else
                    std::memcpy(a, wide(i) + row * LANES, sizeof a);
                accumulate(w.gates_hidden + row * d, d, static_cast<const float*>(h_[l]), a);
                units(a, row / GATES * LANES, x(i), c_[l]);
            });
            std::swap(h_[l], spare_);
        }
    }

    // Processes the units of P panels at once: updates the cell state and the residual, and writes the new h to spare_.
    template <int P>
    ALWAYS_INLINE void units(const Panel<NV> (&a)[P], int at, float* x, float* state) {
        constexpr int N = P * UNITS * NV;  // vectors, in the order of memory
        Vec gates[GATES][N], c[N], h[N];
        EACH_VECTOR for (int g = 0; g < GATES; ++g) gates[g][i] = a[i / NV / UNITS][g * UNITS + i / NV % UNITS][i % NV];
        EACH_VECTOR c[i] = load(state + at + i * VL);
        cells(gates[0], gates[1], gates[2], gates[3], c, h);
        EACH_VECTOR store(state + at + i * VL, c[i]);
        EACH_VECTOR store(spare_ + at + i * VL, h[i]);
        EACH_VECTOR store(x + at + i * VL, load(x + at + i * VL) + h[i]);
    }

    void mlp(int l, int steps) {
        const int64_t d = s_.width;
        const Weights::Block& w = w_.block(l);
        for (int i = 0; i < steps; ++i) layer_norm<NV>(x(i), s_.width, nullptr, norm(i));
        matmuls<NV>(w.up, static_cast<int>(padded(4 * d)), d, steps, norm_, rows(1),
                    [&](int i, int at, Vec(&part)[4]) INLINED {
                        gelu(part);
                        store_four(wide(i) + at, part);
                    });
        matmuls<NV>(w.down, s_.width_rows(), 4 * d, steps, wide_, rows(GATES),
                    [&](int i, int at, Vec(&part)[4]) INLINED {
                        for (int j = 0; j < 4; ++j) part[j] += load(x(i) + at + j * VL);
                        store_four(x(i) + at, part);
                    });
    }

    void dot(const float* a, const float* b, Vec (&sum)[NV]) const {
        for (int v = 0; v < NV; ++v) sum[v] = Vec{};
        for (int k = 0; k < s_.embedding; ++k)
            for (int v = 0; v < NV; ++v, a += VL, b += VL) sum[v] = fma(load(a), load(b), sum[v]);
    }

    // Calls use(.., four vectors of logits in powers of two) for all bytes.
    template <class Use>
    ALWAYS_INLINE void logits(const float* out, Use use) const {
        matmul<NV>(w_.decoder, VOCABULARY, s_.embedding, out, use);
    }

    // Written so that a NaN counts as unsafe.
    bool unsafe(const Vec (&square)[NV]) const {
        bool safe = true;
        for (int v = 0; v < NV; ++v)
            for (int i = 0; i < VL; ++i) safe &= square[v][i] < w_.safe_square;
        return !safe;
    }

    void largest_logit(const float* out, const Vec (&square)[NV], Vec (&shift)[NV]) const {
        Vec largest[NV];
        for (int v = 0; v < NV; ++v) largest[v] = splat(-3e38f);
        logits(out, [&](int, Vec(&y)[4]) INLINED {
            for (int i = 0; i < 4; ++i) largest[i % NV] = max(largest[i % NV], y[i]);
        });
        for (int v = 0; v < NV; ++v) shift[v] = square[v] < w_.safe_square ? Vec{} : largest[v];
    }

    Sizes s_;
    const Weights& w_;
    const uint8_t* tokens_ = nullptr;  // tokens of the first sequence
    int64_t stride_ = 0;
    int count_ = 0;
    Buffer x_, norm_, wide_, spare_;  // residual, LayerNorm, gates or MLP of every step; the next h
    Buffer out_, target_;             // the decoder's inputs, the target's row of E
    std::vector<Buffer> h_, c_;       // states of every block
};

}  // namespace soma
