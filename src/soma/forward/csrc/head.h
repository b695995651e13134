// The delta rule of a tied head (soma.forward.head): the exact decoder-path gradient with hidden states held fixed.
//
// The bytes of the vocabulary lie in the lanes. Every sum has one fixed order for any vector width: a logit, over the
// embedding in order; a softmax normaliser, in 16 sums over every 16th byte, added as a tree; a sequence's gradient,
// over its bytes in order. Sequences are added sequentially in float64.
//
// Shapes: B sequences, T time steps, H embedding width, V = 256 bytes.
#pragma once

#include "network.h"

namespace soma {

// A head stored by columns, times log2(e): [H][V].
class Decoder {
  public:
    Decoder(const float* E, int width) : width(width), columns(size_t(width) * VOCABULARY) {
        for (int b = 0; b < VOCABULARY; ++b)
            for (int k = 0; k < width; ++k) columns[k * VOCABULARY + b] = E[b * width + k] * LOG2_E;
    }
    int width;
    Buffer columns;
};

// The gradient of one sequence's summed loss, [padded H][V].
class SequenceGradient {
  public:
    explicit SequenceGradient(int width)
        : width_(width), hidden_(STEPS * padded(width, TALL)), residual_(STEPS * VOCABULARY) {}

    static size_t floats(int width) { return padded(width, TALL) * VOCABULARY; }

    // Takes hidden [T, H] and targets [T], and writes out.
    void compute(const Decoder& decoder, const float* hidden, const uint8_t* targets, int time, float* out) {
        const int64_t stride = padded(width_, TALL);
        for (int first = 0; first < time; first += STEPS) {
            const int steps = std::min(STEPS, time - first);
            for (int t = 0; t < steps; ++t)
                std::memcpy(hidden_ + t * stride, hidden + (first + t) * int64_t{width_}, sizeof(float) * width_);
            for (int t = 0; t < steps; t += N) {  // the last may include steps of before, which are not used
                logits(decoder, t);
                softmax(residual_ + t * VOCABULARY);
            }
            for (int t = 0; t < steps; ++t) residual_[t * VOCABULARY + targets[first + t]] -= 1.0f;
            for (int k = 0; k < stride; k += TALL)
                for (int v = 0; v < VOCABULARY; v += 2 * VL) outer(steps, k, v, first == 0, out);
        }
    }

  private:
    static constexpr int N = 4;         // steps at once
    static constexpr int STEPS = 32;    // whose residuals stay in cache
    static constexpr int TALL = ROWS;   // rows of the gradient in registers
    static constexpr int PARTS = 16;    // partial sums of a normaliser

    // Computes logits in powers of two for N steps.
    void logits(const Decoder& decoder, int t) {
        const int64_t stride = padded(width_, TALL);
        constexpr int W = ROWS / 2;  // vectors of bytes
        for (int v = 0; v < VOCABULARY; v += W * VL) {
            Vec sum[N][W] = {};
            for (int k = 0; k < width_; ++k)
#pragma GCC unroll 4
                for (int w = 0; w < W; ++w) {
                    const Vec column = load(decoder.columns + k * VOCABULARY + v + w * VL);
                    EACH_VECTOR sum[i][w] = fma(splat(hidden_[(t + i) * stride + k]), column, sum[i][w]);
                }
            for (int i = 0; i < N; ++i)
                for (int w = 0; w < W; ++w) store(residual_ + (t + i) * VOCABULARY + v + w * VL, sum[i][w]);
        }
    }

    // Turns N rows of logits in powers of two into probabilities, in place.
    static void softmax(float* y) {
        alignas(64) float part[N][PARTS];
        for (int i = 0; i < N; ++i) {
            const float* row = y + i * VOCABULARY;
            Vec most[PARTS / VL];
            for (int j = 0; j < PARTS / VL; ++j) most[j] = load(row + j * VL);
            for (int v = PARTS; v < VOCABULARY; v += PARTS)
                for (int j = 0; j < PARTS / VL; ++j) most[j] = max(load(row + v + j * VL), most[j]);
            std::memcpy(part[i], most, sizeof most);
        }
        const Quad largest = fold(part, [](Quad a, Quad b) { return a > b ? a : b; });
        for (int r = 0; r < N; ++r) {
            Vec sum[PARTS / VL] = {};
            for (float* at = y + r * VOCABULARY; at < y + (r + 1) * VOCABULARY; at += N * VL) {
                Vec some[N];
                EACH_VECTOR some[i] = max(load(at + i * VL) - largest[r], splat(-120.0f));
                exp2(some);
                EACH_VECTOR store(at + i * VL, some[i]);
                EACH_VECTOR sum[i % (PARTS / VL)] += some[i];
            }
            std::memcpy(part[r], sum, sizeof sum);
        }
        const Quad scale = 1.0f / fold(part, [](Quad a, Quad b) { return a + b; });
        for (int r = 0; r < N; ++r)
            for (int v = 0; v < VOCABULARY; v += VL) {
                float* at = y + r * VOCABULARY + v;
                store(at, load(at) * scale[r]);
            }
    }

    // Combines the parts of every row as a tree: the first half with the second, and so on.
    template <class Combine>
    static Quad fold(const float (&part)[N][PARTS], Combine combine) {
        Quad m[N];
        for (int i = 0; i < N; ++i) {
            const Quad* q = reinterpret_cast<const Quad*>(part[i]);
            m[i] = combine(combine(q[0], q[2]), combine(q[1], q[3]));
        }
        transpose(m);
        return combine(combine(m[0], m[2]), combine(m[1], m[3]));
    }

    // Adds the sum over steps of hidden x residual to out[k ...][v ...], or to zero.
    void outer(int steps, int k, int v, bool zero, float* out) const {
        const int64_t stride = padded(width_, TALL);
        Vec sum[TALL][2] = {};
#pragma GCC unroll 8
        for (int r = 0; r < TALL && !zero; ++r)
            for (int w = 0; w < 2; ++w) sum[r][w] = load(out + (k + r) * VOCABULARY + v + w * VL);
        for (int t = 0; t < steps; ++t) {
            const Vec low = load(residual_ + t * VOCABULARY + v), high = load(residual_ + t * VOCABULARY + v + VL);
#pragma GCC unroll 8
            for (int r = 0; r < TALL; ++r) {
                const Vec h = splat(hidden_[t * stride + k + r]);
                sum[r][0] = fma(h, low, sum[r][0]);
                sum[r][1] = fma(h, high, sum[r][1]);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < TALL; ++r)
            for (int w = 0; w < 2; ++w) store(out + (k + r) * VOCABULARY + v + w * VL, sum[r][w]);
    }

    int width_;
    Buffer hidden_, residual_;  // of up to STEPS steps, rows padded
};

}  // namespace soma
