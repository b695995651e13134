// The LSTM expert of soma.models.lstm, one perturbed copy at a time, whole network per time step.
//
// A tile is LANES = NV * VL sequences. Its activations are [feature][lane]. Matrices are packed once per copy into panels
// of ROWS rows, [row / ROWS][column][ROWS], with the gain of the LayerNorm before them folded in. Padded rows are zero and
// keep padded features zero.
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
constexpr float LOGIT_LIMIT = 80.0f;  // nats; 256 exponentials of it do not overflow

constexpr int64_t padded(int64_t n, int64_t to = ROWS) { return (n + to - 1) / to * to; }

struct Sizes {
    int width, depth, embedding;
    bool projected() const { return width != embedding; }
    int width_rows() const { return static_cast<int>(padded(width)); }
    int embedding_rows() const { return static_cast<int>(padded(embedding)); }
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

// ------------------------------------------------------------------------------------------- tiles and primitives

template <int NV>
struct Tile {
    static constexpr int LANES = NV * VL;
    const uint8_t* tokens = nullptr;  // of the first sequence, [sequence][T + 1]
    int sequences = 0;                // lanes in use; the others run on byte 0 and are never read
    int64_t stride = 0;               // bytes from one sequence to the next
    Buffer x, norm, wide, out, target, spare;  // residual, LayerNorm, gates or MLP, decoder input, row of E, new h
    std::vector<Buffer> h, c;                  // state of every block
    alignas(64) double loss[LANES];            // summed over time, or of the last token

    explicit Tile(const Sizes& s)
        : x(s.width_rows() * LANES), norm(s.width_rows() * LANES), wide(GATES * s.width_rows() * LANES),
          out(s.embedding_rows() * LANES), target(s.embedding_rows() * LANES), spare(s.width_rows() * LANES) {
        for (int l = 0; l < s.depth; ++l) {
            h.emplace_back(s.width_rows() * LANES);
            c.emplace_back(s.width_rows() * LANES);
        }
    }

    void start(const Sizes& s, const uint8_t* first, int64_t row, int count) {
        tokens = first, stride = row, sequences = count;
        for (int l = 0; l < s.depth; ++l) {
            std::memset(h[l], 0, sizeof(float) * s.width_rows() * LANES);
            std::memset(c[l], 0, sizeof(float) * s.width_rows() * LANES);
        }
        std::fill(loss, loss + LANES, 0.0);
    }
};

// Accumulators of a panel. A narrow tile runs two panels at once, so that there are always enough independent sums to
// hide the latency of a multiply-add.
#ifdef XU
constexpr int UNROLL_K=XU;
#endif
template <int NV>
using Panel = Vec[ROWS][NV];
template <int NV>
constexpr int PANELS = NV == 1 ? 2 : 1;

// a[p] += W x for P panels that follow each other: w [P][K][ROWS], x [K][lane].
template <int P, int NV>
INLINE void accumulate(const float* __restrict w, int64_t K, const float* __restrict x, Panel<NV> (&a)[P]) {
    const int64_t next = K * ROWS;
#ifdef XU
#pragma GCC unroll UNROLL_K
#endif
    for (int64_t k = 0; k < K; ++k, w += ROWS, x += NV * VL) {
        Vec in[NV];
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) in[v] = load(x + v * VL);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p)
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
                for (int v = 0; v < NV; ++v) a[p][r][v] += w[p * next + r] * in[v];
    }
}

// use(P, first row) over all rows, P panels of ROWS rows at a time and single ones at the end.
template <int NV, class Use>
INLINE void each_panel(int rows, Use use) {
    constexpr int P = PANELS<NV>;
    int row = 0;
    for (; row + P * ROWS <= rows; row += P * ROWS) use(std::integral_constant<int, P>(), row);
    if constexpr (P > 1)
        for (; row < rows; row += ROWS) use(std::integral_constant<int, 1>(), row);
}

// use(offset in memory, four vectors) over the accumulators of P panels.
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

// done(tile, row, panels) for all panels of W (rows x K) times an activation of every tile. The tiles share each panel
// while it is in cache.
template <int NV, class Done>
INLINE void matmul(const float* w, int rows, int64_t K, std::vector<Tile<NV>>& tiles, Buffer Tile<NV>::*input,
                   Done done) {
    each_panel<NV>(rows, [&](auto panels, int row) INLINED {
        for (Tile<NV>& tile : tiles) {
            Panel<NV> a[panels()] = {};
            accumulate(w + row * K, K, static_cast<const float*>(tile.*input), a);
            done(tile, row, a);
        }
    });
}

// y[k][lane] = column k of the row of `table` that each lane's byte names; n columns, a multiple of 4.
template <int NV>
INLINE void gather(const float* table, int64_t stride, int n, const uint8_t* bytes, float* y) {
    constexpr int LANES = NV * VL;
    const float* row[LANES];
    for (int i = 0; i < LANES; ++i) row[i] = table + bytes[i] * stride;
    for (int k = 0; k < n; k += 4)
#pragma GCC unroll 4
        for (int i = 0; i < LANES; i += 4) {
            Quad m[4];
            for (int j = 0; j < 4; ++j) m[j] = *reinterpret_cast<const Quad*>(row[i + j] + k);
            transpose(m);
            for (int j = 0; j < 4; ++j) *reinterpret_cast<Quad*>(y + (k + j) * LANES + i) = m[j];
        }
}

// Sum over n features of f(x) in every lane, in two interleaved parts: one addition waits for another.
template <int NV, class F>
INLINE void sum_features(const float* x, int n, F f, Vec (&total)[NV]) {
    Vec odd[NV] = {};
    for (int v = 0; v < NV; ++v) total[v] = Vec{};
    int k = 0;
    for (; k + 1 < n; k += 2, x += 2 * NV * VL)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) {
            total[v] += f(load(x + v * VL), v);
            odd[v] += f(load(x + (NV + v) * VL), v);
        }
    for (int v = 0; v < NV; ++v) {
        if (k < n) total[v] += f(load(x + v * VL), v);
        total[v] += odd[v];
    }
}

// LayerNorm over n features; without a gain where the next matrix carries it.
template <int NV>
INLINE void layer_norm(const float* __restrict x, int n, const float* gain, float* __restrict y) {
    Vec mean[NV], scale[NV];
    sum_features<NV>(x, n, [](Vec a, int) { return a; }, mean);
    for (int v = 0; v < NV; ++v) mean[v] *= 1.0f / n;
    sum_features<NV>(x, n, [&](Vec a, int v) { return (a - mean[v]) * (a - mean[v]); }, scale);
    for (int v = 0; v < NV; ++v) scale[v] = reciprocal_root(scale[v] * (1.0f / n) + LAYER_NORM_EPS);
    for (int k = 0; k < n; ++k)
        for (int v = 0; v < NV; ++v, x += VL, y += VL) {
            const Vec a = (load(x) - mean[v]) * scale[v];
            store(y, gain ? a * gain[k] : a);
        }
}

// ------------------------------------------------------------------------------------------- weights of a copy

class Weights {
  public:
    explicit Weights(const Sizes& s) : s_(s), blocks_(s.depth), bytes_(s) {
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

    // theta: flat body [M] in the order of LSTMSpec.layout; E: head [V, H].
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
    Buffer inputs;       // x of every byte where it is not a row of E, [V][width_rows]
    Buffer first_gates;  // input part of block 0's gates of every byte, [V][GATES width_rows]
    Buffer gain;         // of the last LayerNorm
    float safe_square;   // of |o|: below it no logit exceeds LOGIT_LIMIT

  private:
    template <class Row>
    static void panels_of(int64_t rows, int64_t K, const float* gain, Row source, float* out) {
        for (int64_t first = 0; first < rows; first += ROWS) {
            const float* row[ROWS];
            float scale[ROWS];
            for (int r = 0; r < ROWS; ++r) row[r] = source(first + r, scale[r]);
            for (int64_t k = 0; k < K; ++k)
                for (int r = 0; r < ROWS; ++r) *out++ = row[r] ? row[r][k] * (gain ? gain[k] : 1.0f) * scale[r] : 0.0f;
        }
    }

    static void panels(const float* W, int64_t rows, int64_t K, const float* gain, float factor, float* out) {
        const auto source = [=](int64_t r, float& scale) { return scale = factor, r < rows ? W + r * K : nullptr; };
        panels_of(padded(rows), K, gain, source, out);
    }

    // A panel holds the four gates of UNITS units, gate by gate; -log2(e) makes exp(-x) a power of two, and the candidate's
    // tanh(x) is 2 sigmoid(2 x) - 1.
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

    // What depends on the byte alone is computed once per copy, with the bytes as lanes.
    void tabulate() {
        using Bytes = Tile<2>;
        const int dp = s_.width_rows();
        for (int first = 0; first < VOCABULARY; first += Bytes::LANES) {
            uint8_t bytes[Bytes::LANES];
            for (int i = 0; i < Bytes::LANES; ++i) bytes[i] = static_cast<uint8_t>(first + i);
            std::vector<Bytes>& tile = bytes_.tiles;
            Bytes& t = tile[0];
            gather<2>(head, s_.embedding_rows(), s_.embedding_rows(), bytes, s_.projected() ? t.target : t.x);
            if (s_.projected()) {
                matmul(project_in, dp, s_.embedding, tile, &Bytes::target, [](Bytes& t, int row, auto& a) INLINED {
                    std::memcpy(t.x + row * Bytes::LANES, a, sizeof a);
                });
                scatter(t.x, dp, inputs + first * dp);
            }
            layer_norm<2>(t.x, s_.width, nullptr, t.norm);
            matmul(blocks_[0].gates_input, GATES * dp, s_.width, tile, &Bytes::norm, [](Bytes& t, int row, auto& a) INLINED {
                std::memcpy(t.wide + row * Bytes::LANES, a, sizeof a);
            });
            scatter(t.wide, GATES * dp, first_gates + first * GATES * dp);
        }
    }

    // Rows of a table from [column][lane].
    static void scatter(const float* y, int n, float* table) {
        constexpr int LANES = Tile<2>::LANES;
        for (int i = 0; i < LANES; i += 4)
            for (int k = 0; k < n; k += 4) {
                Quad m[4];
                for (int j = 0; j < 4; ++j) m[j] = *reinterpret_cast<const Quad*>(y + (k + j) * LANES + i);
                transpose(m);
                for (int j = 0; j < 4; ++j) *reinterpret_cast<Quad*>(table + (i + j) * n + k) = m[j];
            }
    }

    struct Scratch {
        explicit Scratch(const Sizes& s) { tiles.emplace_back(s); }
        std::vector<Tile<2>> tiles;
    };

    Sizes s_;
    std::vector<Block> blocks_;
    Scratch bytes_;
};

// ------------------------------------------------------------------------------------------- one time step

// LSTM cells from their pre-activations, times -log2(e) (the candidate's, times -2 log2(e)): with e = 2^that,
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
    EACH_VECTOR candidate[i] = (1.0f - candidate[i]) * forget[i];
    EACH_VECTOR candidate[i] = c[i] * in[i] + candidate[i];
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

template <int NV>
class Step {
  public:
    using T = Tile<NV>;
    static constexpr int LANES = T::LANES;

    Step(const Sizes& s, const Weights& w, std::vector<T>& tiles) : s_(s), w_(w), tiles_(tiles) {}

    // Everything up to the decoder's input, for the bytes at time t.
    void body(int64_t t) {
        for (T& tile : tiles_) inputs(tile, t);
        for (int l = 0; l < s_.depth; ++l) {
            lstm(l);
            mlp(l);
        }
        for (T& tile : tiles_) layer_norm<NV>(tile.x, s_.width, w_.gain, s_.projected() ? tile.norm : tile.out);
        if (s_.projected())
            matmul(w_.project_out, s_.embedding_rows(), s_.width, tiles_, &T::norm, [](T& tile, int row, auto& a) INLINED {
                std::memcpy(tile.out + row * LANES, a, sizeof a);
            });
    }

    // Adds the loss of the byte at t + 1 to every lane.
    void decode(int64_t t) {
        for (T& tile : tiles_) {
            uint8_t bytes[LANES];
            bytes_at(tile, t + 1, bytes);
            gather<NV>(w_.head, s_.embedding_rows(), s_.embedding_rows(), bytes, tile.target);
            loss(tile);
        }
    }

  private:
    static void bytes_at(const T& tile, int64_t t, uint8_t (&bytes)[LANES]) {
        for (int i = 0; i < LANES; ++i) bytes[i] = i < tile.sequences ? tile.tokens[i * tile.stride + t] : 0;
    }

    void inputs(T& tile, int64_t t) {
        uint8_t bytes[LANES];
        bytes_at(tile, t, bytes);
        if (s_.projected())
            gather<NV>(w_.inputs, s_.width_rows(), s_.width_rows(), bytes, tile.x);
        else
            gather<NV>(w_.head, s_.embedding_rows(), s_.width_rows(), bytes, tile.x);
        gather<NV>(w_.first_gates, GATES * s_.width_rows(), GATES * s_.width_rows(), bytes, tile.wide);
    }

    void lstm(int l) {
        const int64_t d = s_.width;
        const Weights::Block& w = w_.block(l);
        if (l)
            for (T& tile : tiles_) layer_norm<NV>(tile.x, s_.width, nullptr, tile.norm);
        each_panel<NV>(GATES * s_.width_rows(), [&](auto panels, int row) INLINED {
            for (T& tile : tiles_) {
                Panel<NV> a[panels()] = {};
                if (l)
                    accumulate(w.gates_input + row * d, d, static_cast<const float*>(tile.norm), a);
                else
                    std::memcpy(a, tile.wide + row * LANES, sizeof a);
                accumulate(w.gates_hidden + row * d, d, static_cast<const float*>(tile.h[l]), a);
                units(tile, l, row / GATES, a);
            }
        });
        for (T& tile : tiles_) std::swap(tile.h[l], tile.spare);
    }

    // The units of P panels, all at once.
    template <int P>
    ALWAYS_INLINE static void units(T& tile, int l, int unit, const Panel<NV> (&a)[P]) {
        constexpr int N = P * UNITS * NV;  // vectors, in the order of memory
        Vec gates[GATES][N], c[N], h[N];
        EACH_VECTOR for (int g = 0; g < GATES; ++g) gates[g][i] = a[i / NV / UNITS][g * UNITS + i / NV % UNITS][i % NV];
        float *state = tile.c[l] + unit * LANES, *fresh = tile.spare + unit * LANES, *x = tile.x + unit * LANES;
        EACH_VECTOR c[i] = load(state + i * VL);
        cells(gates[0], gates[1], gates[2], gates[3], c, h);
        EACH_VECTOR store(state + i * VL, c[i]);
        EACH_VECTOR store(fresh + i * VL, h[i]);
        EACH_VECTOR store(x + i * VL, load(x + i * VL) + h[i]);
    }

    void mlp(int l) {
        const int64_t d = s_.width;
        const Weights::Block& w = w_.block(l);
        for (T& tile : tiles_) layer_norm<NV>(tile.x, s_.width, nullptr, tile.norm);
        matmul(w.up, static_cast<int>(padded(4 * d)), d, tiles_, &T::norm, [](T& tile, int row, auto& a) INLINED {
            each_four(a, [&](int at, Vec (&part)[4]) INLINED {
                gelu(part);
                for (int i = 0; i < 4; ++i) store(tile.wide + row * LANES + at + i * VL, part[i]);
            });
        });
        matmul(w.down, s_.width_rows(), 4 * d, tiles_, &T::wide, [](T& tile, int row, auto& a) INLINED {
            each_four(a, [&](int at, Vec (&part)[4]) INLINED {
                float* x = tile.x + row * LANES + at;
                for (int i = 0; i < 4; ++i) store(x + i * VL, load(x + i * VL) + part[i]);
            });
        });
    }

    // logsumexp(logits) - target logit. No logit exceeds |o| max |E_v|; where that bound is safe the exponentials need no
    // shift. Elsewhere, lane by lane, a first pass finds the largest logit.
    void loss(T& tile) {
        Vec square[NV] = {}, target[NV] = {}, shift[NV] = {}, sum[NV] = {};
        for (int k = 0; k < s_.embedding; ++k)
            for (int v = 0; v < NV; ++v) {
                const Vec o = load(tile.out + k * LANES + v * VL);
                square[v] += o * o;
                target[v] += o * load(tile.target + k * LANES + v * VL);
            }
        if (unsafe(square)) {
            largest_logit(tile, square, shift);
            logits(tile, [&](int, Vec (&y)[4]) INLINED {
                for (int i = 0; i < 4; ++i) y[i] = max(y[i] - shift[i % NV], splat(-120.0f));
                exp2(y);
                for (int i = 0; i < 4; ++i) sum[i % NV] += y[i];
            });
        } else {
            logits(tile, [&](int, Vec (&y)[4]) INLINED {
                exp2(y);
                for (int i = 0; i < 4; ++i) sum[i % NV] += y[i];
            });
        }
        for (int v = 0; v < NV; ++v) {
            const Vec rest = shift[v] * (1 / LOG2_E) - target[v];
            *reinterpret_cast<Wide*>(tile.loss + v * VL) += logarithm(sum[v]) + __builtin_convertvector(rest, Wide);
        }
    }

    // use(.., four vectors of logits in powers of two) over all bytes.
    template <class Use>
    ALWAYS_INLINE void logits(const T& tile, Use use) const {
        each_panel<NV>(VOCABULARY, [&](auto panels, int row) INLINED {
            Panel<NV> a[panels()] = {};
            accumulate(w_.decoder + row * s_.embedding, s_.embedding, static_cast<const float*>(tile.out), a);
            each_four(a, use);
        });
    }

    // Written so that a NaN counts as unsafe and reaches the loss.
    bool unsafe(const Vec (&square)[NV]) const {
        bool safe = true;
        for (int v = 0; v < NV; ++v)
            for (int i = 0; i < VL; ++i) safe &= square[v][i] < w_.safe_square;
        return !safe;
    }

    void largest_logit(const T& tile, const Vec (&square)[NV], Vec (&shift)[NV]) const {
        Vec largest[NV];
        for (int v = 0; v < NV; ++v) largest[v] = splat(-3e38f);
        logits(tile, [&](int, Vec (&y)[4]) INLINED {
            for (int i = 0; i < 4; ++i) largest[i % NV] = max(largest[i % NV], y[i]);
        });
        for (int v = 0; v < NV; ++v) shift[v] = square[v] < w_.safe_square ? Vec{} : largest[v];
    }

    Sizes s_;
    const Weights& w_;
    std::vector<T>& tiles_;
};

}  // namespace soma
