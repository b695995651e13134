// Losses and states of EGGROLL's members, and the factors of their rank-one perturbations; soma.forward.members mirrors
// `Problem` and documents the arguments.
//
// A tile is LANES members of the model of soma.models.gru, pair by pair, + first; its activations are [feature][lane].
// One matrix serves all members, packed once per call; the perturbation sigma a b^T adds a (b . x) in each lane. No
// number depends on another lane, so the division of the pairs among calls cannot change a bit.
//
// Shapes: P pairs, T time steps, L depth, D width, V = 256 bytes, K factors of a pair, M parameters.
#include "network.h"
#include "probes.h"

namespace soma {
namespace {

constexpr int NV = 2, LANES = NV * VL;
constexpr float CLIP = 127.0f / 16, NORM_FLOOR = 1e-6f;

struct Place {
    int64_t offset, left, right;  // of a tensor in theta, and of its two factors among those of a pair
};

struct Problem {
    int32_t width, depth, pairs, time;
    int32_t separator, clip;  // -1 for no separator; 0 for sigmoid and tanh
    int64_t factors;          // K
    const Place* places;      // of every tensor, in the order of GRUSpec.layout
    const float* theta;       // [M]
    const double* noise;      // [P, K]
    const uint8_t* tokens;    // [P, T + 1]
    const float* before;      // states [P, 2, L, D]
    float sigma;
    double* losses;           // [P, 2], summed over time
    double* token_losses;     // [P, 2, T], or null
    float* after;             // states [P, 2, L, D]
};

#define EACH_LANE _Pragma("GCC unroll 4") for (int v = 0; v < NV; ++v)
#define EACH_FOURTH _Pragma("GCC unroll 4") for (int i = 0; i < 4; ++i)

// ---------------------------------------------------------------------------------------------------- the factors

// Returns the natural logarithm of a in (0, 1]: 2 atanh((m - 1) / (m + 1)) for the mantissa m in [1/sqrt2, sqrt2), by
// its series to the 23rd power, of which the rest is below 1e-18.
INLINE Wide logarithm_of(Wide a) {
    const Long bits = (Long)a - 0x3fe6a09e667f3bcd;
    const Long exponent = bits >> 52;
    const Wide m = (Wide)((bits & 0x000fffffffffffff) + 0x3fe6a09e667f3bcd);
    const Wide s = (m - 1.0) / (m + 1.0), t = s * s;
    Wide p = Wide{} + 2.0 / 23;
#pragma GCC unroll 16
    for (int n = 21; n > 0; n -= 2) p = p * t + 2.0 / n;
    return __builtin_convertvector(exponent, Wide) * 0.69314718055994531 + p * s;
}

// Computes the sine and cosine of 2 pi w / 2^32: of the rest of w to a quarter turn by their series, of which the rest
// is below 1e-16, and then by quadrant.
INLINE void turn(Int w, Wide& sine, Wide& cosine) {
    const Int rest = (Int)((w + (1 << 29)) & 0x3fffffff) - (1 << 29);
    const Int quadrant = ((w - rest) >> 30) & 3;
    const Wide a = __builtin_convertvector(rest, Wide) * 1.4629180792671596e-9, t = a * a;  // 2 pi / 2^32
    Wide s = Wide{} + 1.0, c = s;
#pragma GCC unroll 16
    for (int n = 16; n > 0; n -= 2) {
        s = 1.0 - s * t * (1.0 / (n * (n + 1)));
        c = 1.0 - c * t * (1.0 / (n * (n - 1)));
    }
    s *= a;
    const Long q = __builtin_convertvector(quadrant, Long);
    const Long odd = -(q & 1), swapped = ((Long)s ^ (Long)c) & odd;
    sine = (Wide)(((Long)s ^ swapped) ^ ((q >> 1) << 63));
    cosine = (Wide)(((Long)c ^ swapped) ^ ((((q + 1) >> 1) & 1) << 63));
}

INLINE Wide on_grid(Wide a) { return ((a * 4096.0 + 6755399441055744.0) - 6755399441055744.0) * (1.0 / 4096); }

// Writes the K factors of a pair: Gaussians by Box and Muller from two words each, rounded to multiples of 2^-12.
void draw(uint64_t key, uint32_t update, uint32_t pair, int64_t K, double* out) {
    for (int64_t block = 0; 4 * block < K; block += VL) {
        Int words[4];
        for (int i = 0; i < VL; ++i) {
            const Philox at = philox({{static_cast<uint32_t>(block + i), pair, update, 0}}, key);
            for (int j = 0; j < 4; ++j) words[j][i] = static_cast<int32_t>(at.word[j]);
        }
        alignas(64) double number[4][VL];
        for (int j = 0; j < 4; j += 2) {
            const Wide word = __builtin_convertvector(words[j] ^ INT32_MIN, Wide) + 2147483649.0;  // in 1 .. 2^32
            Wide radius = logarithm_of(word * 0x1p-32) * -2.0, sine, cosine;
            for (int i = 0; i < VL; ++i) radius[i] = std::sqrt(radius[i]);
            turn(words[j + 1], sine, cosine);
            *reinterpret_cast<Wide*>(number[j]) = on_grid(radius * cosine);
            *reinterpret_cast<Wide*>(number[j + 1]) = on_grid(radius * sine);
        }
        const int64_t n = std::min<int64_t>(4 * VL, K - 4 * block);
        for (int64_t i = 0; i < n; ++i) out[4 * block + i] = number[i % 4][i / 4];
    }
}

// ---------------------------------------------------------------------------------------------------- a tile's steps

// A matrix of all members divided by sqrt(K), in panels of ROWS rows.
struct Matrix {
    int rows = 0, K = 0;
    Buffer weights;

    Matrix() = default;
    Matrix(const float* W, int64_t n, int64_t columns)
        : rows(static_cast<int>(padded(n))), K(static_cast<int>(columns)), weights(rows * columns) {
        float* out = weights;
        for (int64_t first = 0; first < rows; first += ROWS)
            for (int64_t k = 0; k < columns; ++k)
                for (int64_t r = first; r < first + ROWS; ++r) *out++ = r < n ? W[r * columns + k] * scale() : 0.0f;
    }
    float scale() const { return 1.0f / std::sqrt(static_cast<float>(K)); }
};

// What the members of a tile add to a matrix: left (right . x), with the sign, sigma and 1 / sqrt(K) in left.
struct RankOne {
    Buffer left, right;  // [rows][lane], [K][lane]

    RankOne() = default;
    explicit RankOne(const Matrix& m) : left(int64_t{m.rows} * LANES), right(int64_t{m.K} * LANES) {}
};

template <bool CLIPPED>
INLINE Vec clipped(Vec a) {
    return CLIPPED ? clamp(a, -CLIP, CLIP) : a;
}

// Calls use(offset in memory, four vectors) for C(W x + left (right . x)).
template <bool CLIPPED, class Use>
INLINE void product(const Matrix& m, const RankOne& own, const float* x, Use use) {
    Vec dot[NV] = {}, odd[NV] = {};  // interleaved, since each addition waits for the previous one
    const float *a = x, *b = own.right;
    int k = 0;
    for (; k + 1 < m.K; k += 2, a += 2 * LANES, b += 2 * LANES)
        EACH_LANE {
            dot[v] = fma(load(a + v * VL), load(b + v * VL), dot[v]);
            odd[v] = fma(load(a + LANES + v * VL), load(b + LANES + v * VL), odd[v]);
        }
    EACH_LANE {
        if (k < m.K) dot[v] = fma(load(a + v * VL), load(b + v * VL), dot[v]);
        dot[v] += odd[v];
    }
    matmul<NV>(m.weights, m.rows, m.K, x, [&](int at, Vec(&y)[4]) INLINED {
        EACH_FOURTH y[i] = clipped<CLIPPED>(fma(load(own.left + at + i * VL), dot[i % NV], y[i]));
        use(at, y);
    });
}

// Computes y = x gain / mean |x| over n features.
INLINE void norm(const float* x, int n, const float* gain, float* y) {
    Vec scale[NV];
    sum_features<NV>(x, n, [](Vec sum, Vec a, int) INLINED { return sum + (Vec)((Int)a & INT32_MAX); }, scale);
    EACH_LANE scale[v] = 1.0f / max(scale[v] / static_cast<float>(n), splat(NORM_FLOOR));
    for (int k = 0; k < n; ++k)
        EACH_LANE store(y + k * LANES + v * VL, load(x + k * LANES + v * VL) * load(gain + k * LANES + v * VL) * scale[v]);
}

// Computes 1 / (1 + 2^y); arguments are clamped where a float32 sigmoid is 0 or 1 to 1e-12.
INLINE void logistic(Vec (&y)[4]) {
    EACH_FOURTH y[i] = clamp(y[i], -40.0f, 40.0f);
    exp2(y);
    EACH_FOURTH y[i] += 1.0f;
    reciprocal(y);
}

// The gate g and the candidate k from their pre-activations.
template <bool CLIPPED>
INLINE void sigma(Vec (&y)[4]) {
    if constexpr (CLIPPED) {
        EACH_FOURTH y[i] = fma(clipped<true>(y[i]), 0.5f / CLIP, 0.5f);
    } else {
        EACH_FOURTH y[i] *= -LOG2_E;
        logistic(y);
    }
}

template <bool CLIPPED>
INLINE void tau(Vec (&y)[4]) {
    if constexpr (CLIPPED) {
        EACH_FOURTH y[i] = clipped<true>(y[i]);
    } else {
        EACH_FOURTH y[i] *= -2 * LOG2_E;
        logistic(y);
        EACH_FOURTH y[i] = fma(y[i], 2.0f, -1.0f);
    }
}

enum { CELL_NORM, GATE_INPUT, GATE_HIDDEN, GATE_BIAS, CANDIDATE_INPUT, CANDIDATE_HIDDEN, CANDIDATE_BIAS, MLP_NORM,
       MLP_UP, MLP_DOWN, TENSORS };  // of a block, in the order of GRUSpec.layout

bool is_vector(int tensor) {
    return tensor == CELL_NORM || tensor == GATE_BIAS || tensor == CANDIDATE_BIAS || tensor == MLP_NORM;
}

template <bool CLIPPED>
class Members {
  public:
    explicit Members(const Problem& p)
        : p_(p), d_(p.width), dp_(static_cast<int>(padded(p.width))), blocks_(p.depth * TENSORS), x_(size(p.time)),
          u_(size(1)), gate_(size(1)), candidate_(size(1)), h_(size(1)), gated_(size(1)), wide_(size(4)),
          logits_(int64_t{VOCABULARY} * LANES), head_(weights(place(p.depth, HEAD)), VOCABULARY, p.width), own_head_(head_) {
        for (int i = 0; i < p.depth * TENSORS; ++i) {
            const int tensor = i % TENSORS;
            if (!is_vector(tensor)) blocks_[i] = Matrix(weights(p.places[1 + i]), rows(tensor), columns(tensor));
        }
        for (int i = 0; i < TENSORS; ++i)
            if (is_vector(i))
                vectors_[i] = Buffer(size(1));
            else
                own_[i] = RankOne(blocks_[i]);
    }

    // Runs the members from number `first`, as many as there are lanes.
    void run(int first) {
        const int count = std::min(LANES, 2 * p_.pairs - first);
        for (int i = 0; i < LANES; ++i) {
            const int member = first + std::min(i, count - 1);  // lanes to spare repeat the last member
            member_[i] = member;
            noise_[i] = p_.noise + member / 2 * p_.factors;
            step_[i] = member % 2 ? -p_.sigma : p_.sigma;
            tokens_[i] = p_.tokens + int64_t{member / 2} * (p_.time + 1);
        }
        embed();
        for (int l = 0; l < p_.depth; ++l) block(l, count);
        decode(count);
    }

  private:
    static constexpr int NORM = 0, HEAD = 1;  // after the last block

    int rows(int tensor) const { return tensor == MLP_UP ? 4 * d_ : d_; }
    int columns(int tensor) const { return tensor == MLP_DOWN ? 4 * d_ : d_; }
    int64_t size(int64_t n) const { return n * dp_ * LANES; }
    const Place& place(int block, int tensor) const { return p_.places[1 + block * TENSORS + tensor]; }
    const float* weights(const Place& at) const { return p_.theta + at.offset; }

    void embed() {
        const Place& at = p_.places[0];
        for (int t = 0; t < p_.time; ++t)
            for (int i = 0; i < LANES; ++i) {
                const int byte = tokens_[i][t];
                const float left = step_[i] * static_cast<float>(noise_[i][at.left + byte]);
                const float* row = weights(at) + int64_t{byte} * d_;
                const double* right = noise_[i] + at.right;
                float* x = x_ + size(t) + i;
                for (int k = 0; k < d_; ++k) x[k * LANES] = row[k] + left * static_cast<float>(right[k]);
            }
    }

    void rank_one(const Place& at, const Matrix& m, int rows, const RankOne& out) {
        for (int i = 0; i < LANES; ++i) {
            const float step = step_[i] * m.scale();
            for (int k = 0; k < rows; ++k) out.left[k * LANES + i] = static_cast<float>(noise_[i][at.left + k]) * step;
            for (int k = 0; k < m.K; ++k) out.right[k * LANES + i] = static_cast<float>(noise_[i][at.right + k]);
        }
    }

    void vector(const Place& at, float* out) {
        for (int i = 0; i < LANES; ++i)
            for (int k = 0; k < d_; ++k) {
                const float u = static_cast<float>(noise_[i][at.left + k]), w = static_cast<float>(noise_[i][at.right + k]);
                out[k * LANES + i] = weights(at)[k] + step_[i] * (u * w);
            }
    }

    void block(int l, int count) {
        const Matrix* m = &blocks_[l * TENSORS];
        for (int i = 0; i < TENSORS; ++i)
            if (is_vector(i))
                vector(place(l, i), vectors_[i]);
            else
                rank_one(place(l, i), m[i], rows(i), own_[i]);
        for (int i = 0; i < LANES; ++i) {
            const float* state = p_.before + (int64_t{member_[i]} * p_.depth + l) * d_;
            for (int k = 0; k < d_; ++k) h_[k * LANES + i] = state[k];
        }
        for (int t = 0; t < p_.time; ++t) step(m, t);
        for (int i = 0; i < count; ++i) {
            float* state = p_.after + (int64_t{member_[i]} * p_.depth + l) * d_;
            for (int k = 0; k < d_; ++k) state[k] = h_[k * LANES + i];
        }
    }

    void step(const Matrix* m, int t) {
        float* x = x_ + size(t);
        for (int i = 0; i < LANES; ++i)
            if (tokens_[i][t] == p_.separator)
                for (int k = 0; k < d_; ++k) h_[k * LANES + i] = 0;
        norm(x, d_, vectors_[CELL_NORM], u_);
        product<CLIPPED>(m[GATE_INPUT], own_[GATE_INPUT], u_, [&](int at, Vec(&y)[4]) INLINED {
            EACH_FOURTH store(gate_ + at + i * VL, y[i] + load(vectors_[GATE_BIAS] + at + i * VL));
        });
        product<CLIPPED>(m[CANDIDATE_INPUT], own_[CANDIDATE_INPUT], u_, [&](int at, Vec(&y)[4]) INLINED {
            EACH_FOURTH store(candidate_ + at + i * VL, y[i] + load(vectors_[CANDIDATE_BIAS] + at + i * VL));
        });
        product<CLIPPED>(m[GATE_HIDDEN], own_[GATE_HIDDEN], h_, [&](int at, Vec(&y)[4]) INLINED {
            EACH_FOURTH y[i] += load(gate_ + at + i * VL);
            sigma<CLIPPED>(y);
            EACH_FOURTH store(gate_ + at + i * VL, y[i]);
            EACH_FOURTH store(gated_ + at + i * VL, y[i] * load(h_ + at + i * VL));
        });
        product<CLIPPED>(m[CANDIDATE_HIDDEN], own_[CANDIDATE_HIDDEN], gated_, [&](int at, Vec(&y)[4]) INLINED {
            EACH_FOURTH y[i] += load(candidate_ + at + i * VL);
            tau<CLIPPED>(y);
            EACH_FOURTH {
                const Vec h = load(h_ + at + i * VL), now = fma(load(gate_ + at + i * VL), y[i] - h, h);
                store(h_ + at + i * VL, now);
                store(x + at + i * VL, load(x + at + i * VL) + now);
            }
        });
        norm(x, d_, vectors_[MLP_NORM], u_);
        product<CLIPPED>(m[MLP_UP], own_[MLP_UP], u_, [&](int at, Vec(&y)[4]) INLINED { store_four(wide_ + at, y); });
        product<CLIPPED>(m[MLP_DOWN], own_[MLP_DOWN], wide_, [&](int at, Vec(&y)[4]) INLINED {
            EACH_FOURTH store(x + at + i * VL, load(x + at + i * VL) + y[i]);
        });
    }

    // Clipped logits need no guard against overflow; others are shifted by the largest.
    void decode(int count) {
        vector(place(p_.depth, NORM), vectors_[CELL_NORM]);
        rank_one(place(p_.depth, HEAD), head_, VOCABULARY, own_head_);
        double total[LANES] = {};
        for (int t = 0; t < p_.time; ++t) {
            norm(x_ + size(t), d_, vectors_[CELL_NORM], u_);
            Vec sum[NV] = {}, largest[NV];
            EACH_LANE largest[v] = splat(CLIPPED ? 0.0f : -3e38f);
            product<CLIPPED>(head_, own_head_, u_, [&](int at, Vec(&y)[4]) INLINED {
                store_four(logits_ + at, y);
                if constexpr (!CLIPPED) EACH_FOURTH largest[i % NV] = max(largest[i % NV], y[i]);
            });
            for (int at = 0; at < VOCABULARY * LANES; at += 4 * VL) {
                Vec y[4];
                EACH_FOURTH y[i] = (load(logits_ + at + i * VL) - largest[i % NV]) * LOG2_E;
                if constexpr (!CLIPPED) EACH_FOURTH y[i] = max(y[i], splat(-120.0f));
                exp2(y);
                EACH_FOURTH sum[i % NV] += y[i];
            }
            for (int v = 0; v < NV; ++v) {
                const Wide normaliser = logarithm(sum[v]);
                for (int i = 0; i < VL; ++i) {
                    const int lane = v * VL + i;
                    const double logit = logits_[tokens_[lane][t + 1] * LANES + lane];
                    const double loss = normaliser[i] + largest[v][i] - logit;
                    total[lane] += loss;
                    if (p_.token_losses) p_.token_losses[int64_t{member_[lane]} * p_.time + t] = loss;
                }
            }
        }
        for (int i = 0; i < count; ++i) p_.losses[member_[i]] = total[i];
    }

    const Problem& p_;
    int d_, dp_;
    std::vector<Matrix> blocks_;
    Buffer x_;  // residual of every step
    Buffer u_, gate_, candidate_, h_, gated_, wide_, logits_;
    Matrix head_;
    RankOne own_head_;
    Buffer vectors_[TENSORS];
    RankOne own_[TENSORS];
    int member_[LANES];
    const double* noise_[LANES];
    float step_[LANES];
    const uint8_t* tokens_[LANES];
};

template <bool CLIPPED>
void members(const Problem& p) {
    Members<CLIPPED> tile(p);
    for (int first = 0; first < 2 * p.pairs; first += LANES) tile.run(first);
}

}  // namespace
}  // namespace soma

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int soma_problem_bytes() { return sizeof(soma::Problem); }

EXPORT int soma_supported() {
#if defined(__AVX512F__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma");
#elif defined(__AVX2__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 1;
#endif
}

// Draws the factors [P, K] of pairs first, first + 1, ...
EXPORT void soma_factors(uint64_t key, uint32_t update, uint32_t first, int32_t pairs, int64_t K, double* out) {
    for (int32_t i = 0; i < pairs; ++i) soma::draw(key, update, first + i, K, out + i * K);
}

// Returns 0, or 1 if memory runs out.
EXPORT int soma_members(const soma::Problem* p) {
    try {
        p->clip ? soma::members<true>(*p) : soma::members<false>(*p);
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}
