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

    // Takes hidden [T, H], targets [T] and a zeroed out.
    void add(const Decoder& decoder, const float* hidden, const uint8_t* targets, int time, float* out) {
        const int64_t stride = padded(width_, TALL);
        for (int first = 0; first < time; first += STEPS) {
            const int steps = std::min(STEPS, time - first);
            for (int t = 0; t < steps; ++t)
                std::memcpy(hidden_ + t * stride, hidden + (first + t) * int64_t{width_}, sizeof(float) * width_);
            int t = 0;
            for (; t + 4 <= steps; t += 4) logits<4>(decoder, t);
            for (; t < steps; ++t) logits<1>(decoder, t);
            for (t = 0; t < steps; ++t) residual(residual_ + t * VOCABULARY, targets[first + t]);
            for (int k = 0; k < stride; k += TALL)
                for (int v = 0; v < VOCABULARY; v += 2 * VL) add_outer(steps, k, v, out);
        }
    }

  private:
    static constexpr int STEPS = 32;    // whose residuals stay in cache
    static constexpr int TALL = ROWS;   // rows of the gradient in registers
    static constexpr int PARTS = 16;    // partial sums of a normaliser

    template <int N>
    void logits(const Decoder& decoder, int t) {
        const int64_t stride = padded(width_, TALL);
        constexpr int W = N == 1 ? 4 : ROWS / 4;  // vectors of bytes
        for (int v = 0; v < VOCABULARY; v += W * VL) {
            Vec sum[N][W] = {};
            for (int k = 0; k < width_; ++k)
#pragma GCC unroll 4
                for (int w = 0; w < W; ++w) {
                    const Vec column = load(decoder.columns + k * VOCABULARY + v + w * VL);
#pragma GCC unroll 4
                    for (int i = 0; i < N; ++i) sum[i][w] = fma(splat(hidden_[(t + i) * stride + k]), column, sum[i][w]);
                }
            for (int i = 0; i < N; ++i)
                for (int w = 0; w < W; ++w) store(residual_ + (t + i) * VOCABULARY + v + w * VL, sum[i][w]);
        }
    }

    // Turns logits in powers of two into softmax minus one-hot, in place.
    static void residual(float* y, uint8_t target) {
        constexpr int N = 4;
        alignas(64) float lane[VL], part[PARTS] = {};
        Vec most = load(y);
        for (int v = VL; v < VOCABULARY; v += VL) most = max(load(y + v), most);
        store(lane, most);
        float largest = lane[0];
        for (int i = 1; i < VL; ++i) largest = std::max(largest, lane[i]);
        for (int v = 0; v < VOCABULARY; v += N * VL) {
            Vec some[N];
            EACH_VECTOR some[i] = max(load(y + v + i * VL) - largest, splat(-120.0f));
            exp2(some);
            EACH_VECTOR store(y + v + i * VL, some[i]);
            for (int i = 0; i < N; ++i) {
                float* sum = part + (v + i * VL) % PARTS;
                store(sum, load(sum) + some[i]);
            }
        }
        for (int half = PARTS / 2; half; half /= 2)
            for (int i = 0; i < half; ++i) part[i] += part[i + half];
        const float scale = 1.0f / part[0];
        for (int v = 0; v < VOCABULARY; v += VL) store(y + v, load(y + v) * scale);
        y[target] -= 1.0f;
    }

    // out[k ...][v ...] += sum over steps of hidden x residual.
    void add_outer(int steps, int k, int v, float* out) const {
        const int64_t stride = padded(width_, TALL);
        Vec sum[TALL][2];
#pragma GCC unroll 8
        for (int r = 0; r < TALL; ++r)
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
