// Routed inference: every expert is packed once, a call takes groups of any size, and states carry over between calls.
//
// Training puts sequences in the lanes, which needs 16 or 32 sequences for the same weights. A batch of requests sends
// one or two to each of many experts, so here the lanes hold features, and rows (sequences, and steps of a sequence if
// the recurrence allows it) share the loaded weights. Matrices are [row / VL][column][VL] with the preceding
// LayerNorm's gain folded in; padded rows and features are zero. Every number of a sequence is computed in a fixed
// order, so neither the other sequences of the call, nor the number of threads, nor cutting a text into several calls
// changes a bit.
//
// Shapes: N experts, P pairs of an expert and a sequence, T bytes read, D width, H embedding width, L depth, V = 256.
#include <atomic>
#include <cmath>
#include <numeric>
#include <system_error>
#include <thread>

#include "../../forward/csrc/network.h"

namespace soma {
namespace {

constexpr int MOST = 64;       // rows per tile, which share one pass over the weights
constexpr int SEQUENCES = 16;  // at most per tile, so that a chunk has at least four steps
// Accumulators: vectors of rows for one or two sequences and for more; without AVX-512, half as many registers.
#if defined(__AVX512F__)
constexpr int FEW_ROWS = 8, ROWS_AT_ONCE = 4, THIN_SEQUENCES = 2;
#else
constexpr int FEW_ROWS = 4, ROWS_AT_ONCE = 2, THIN_SEQUENCES = 1;
#endif
constexpr int AT_ONCE = 4;  // sequences

template <int N>
using Count = std::integral_constant<int, N>;

int vectors(int64_t n) { return static_cast<int>((n + VL - 1) / VL); }

// Reduce the lanes to their sum, as a tree, or their maximum.
INLINE float fold(Vec a, bool sum) {
    alignas(64) float lane[VL];
    store(lane, a);
    for (int half = VL / 2; half; half /= 2)
        for (int i = 0; i < half; ++i) lane[i] = sum ? lane[i] + lane[i + half] : std::max(lane[i], lane[i + half]);
    return lane[0];
}
#if defined(__AVX512F__)
INLINE float total(Vec a) { return _mm512_reduce_add_ps((__m512)a); }
INLINE float largest(Vec a) { return _mm512_reduce_max_ps((__m512)a); }
#else
INLINE float total(Vec a) { return fold(a, true); }
INLINE float largest(Vec a) { return fold(a, false); }
#endif

// ------------------------------------------------------------------------------------------- products

// Add rows of W times sequence b to a[p][b]: w [P][K][VL], x [B] rows of `stride` floats.
template <int P, int B>
INLINE void add_products(const float* __restrict w, int64_t K, const float* __restrict x, int64_t stride, Vec (&a)[P][B]) {
    for (int64_t k = 0; k < K; ++k)
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
            const Vec row = load(w + (p * K + k) * VL);
#pragma GCC unroll 4
            for (int b = 0; b < B; ++b) a[p][b] = fma(row, splat(x[b * stride + k]), a[p][b]);
        }
}

// The same for one or two vectors of rows: four sums, each over every fourth column, hide the latency of one.
template <int P, int B>
INLINE void add_thin(const float* __restrict w, int64_t K, const float* __restrict x, int64_t stride, Vec (&a)[P][B]) {
    Vec part[4][P][B] = {};
    int64_t k = 0;
    for (; k + 4 <= K; k += 4)
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i)
#pragma GCC unroll 2
            for (int p = 0; p < P; ++p) {
                const Vec row = load(w + (p * K + k + i) * VL);
#pragma GCC unroll 2
                for (int b = 0; b < B; ++b) part[i][p][b] = fma(row, splat(x[b * stride + k + i]), part[i][p][b]);
            }
    for (int p = 0; p < P; ++p)
        for (int b = 0; b < B; ++b) {
            for (int64_t rest = k; rest < K; ++rest)
                part[0][p][b] = fma(load(w + (p * K + rest) * VL), splat(x[b * stride + rest]), part[0][p][b]);
            a[p][b] += (part[0][p][b] + part[1][p][b]) + (part[2][p][b] + part[3][p][b]);
        }
}

// Call work(P, B, first vector of rows, first sequence) over n sequences, at most MOST_B at once.
template <int P, int MOST_B, class Work>
INLINE void each_sequences(int row, int n, Work work) {
    int b = 0;
    for (; b + MOST_B <= n; b += MOST_B) work(Count<P>(), Count<MOST_B>(), row, b);
    if constexpr (MOST_B > 3)
        if (n - b == 3) work(Count<P>(), Count<3>(), row, b);
    if constexpr (MOST_B > 2)
        if (n - b == 2) work(Count<P>(), Count<2>(), row, b);
    if constexpr (MOST_B > 1)
        if (n - b == 1) work(Count<P>(), Count<1>(), row, b);
}

// Call use(vector of rows, sequence, sum) for every vector of rows of W and each of n sequences.
template <class Use>
INLINE void multiply(const float* w, int rows, int64_t K, const float* x, int64_t stride, int n, Use use) {
    const auto work = [&](auto P, auto B, int row, int b) INLINED {
        Vec a[P()][B()] = {};
        add_products(w + row * K * VL, K, x + b * stride, stride, a);
        for (int p = 0; p < P(); ++p)
            for (int i = 0; i < B(); ++i) use(row + p, b + i, a[p][i]);
    };
    const auto thin = [&](auto P, auto B, int row, int b) INLINED {
        Vec a[P()][B()] = {};
        add_thin(w + row * K * VL, K, x + b * stride, stride, a);
        for (int p = 0; p < P(); ++p)
            for (int i = 0; i < B(); ++i) use(row + p, b + i, a[p][i]);
    };
    if (rows == 1) return each_sequences<1, THIN_SEQUENCES>(0, n, thin);
    if (rows == 2) return each_sequences<2, THIN_SEQUENCES>(0, n, thin);
    int row = 0;
    if (n <= 2)
        for (; row + FEW_ROWS <= rows; row += FEW_ROWS) each_sequences<FEW_ROWS, 2>(row, n, work);
    for (; row + ROWS_AT_ONCE <= rows; row += ROWS_AT_ONCE) each_sequences<ROWS_AT_ONCE, AT_ONCE>(row, n, work);
    for (; row < rows; ++row) each_sequences<1, AT_ONCE>(row, n, work);
}

// ------------------------------------------------------------------------------------------- an expert

struct Padded : Sizes {
    explicit Padded(const Sizes& s) : Sizes(s) {}
    int d() const { return vectors(width) * VL; }          // a row of features
    int h() const { return vectors(embedding) * VL; }      // a row of an embedding
    int inner() const { return vectors(4 * width) * VL; }  // a row inside the MLP
    int gates() const { return GATES * d(); }
    int64_t state() const { return int64_t{2} * depth * d(); }
};

struct Block {
    Buffer gates_input, gates_hidden, up, down;
};

// Compute y = (x - mean) / sd over n features of a row, times the gain if given; `inside` is 1 on unpadded features.
INLINE void normalise(const float* x, int n, const float* inside, const float* gain, float* y) {
    const int end = vectors(n) * VL;
    Vec sum = {}, square = {};
    for (int k = 0; k < end; k += VL) sum += load(x + k);
    const float mean = total(sum) / n;
    for (int k = 0; k < end; k += VL) {
        const Vec centred = (load(x + k) - mean) * load(inside + k);
        square = fma(centred, centred, square);
        store(y + k, centred);
    }
    const float scale = 1.0f / std::sqrt(total(square) / n + LAYER_NORM_EPS);
    for (int k = 0; k < end; k += VL) store(y + k, gain ? load(y + k) * scale * load(gain + k) : load(y + k) * scale);
}

// Pack W [rows, K] into vectors of rows, scaled by column gains and row factors; source(r) is a row or null.
template <class Source>
void pack(int64_t rows, int64_t K, const float* gain, Source source, float* out) {
    for (int64_t first = 0; first < rows; first += VL)
        for (int64_t i = 0; i < VL; ++i) {
            float factor = 1;
            const float* row = first + i < rows ? source(first + i, factor) : nullptr;
            for (int64_t k = 0; row && k < K; ++k)
                out[(first / VL * K + k) * VL + i] = row[k] * (gain ? gain[k] : 1.0f) * factor;
        }
}

void pack(const float* W, int64_t rows, int64_t K, const float* gain, float factor, float* out) {
    pack(rows, K, gain, [=](int64_t r, float& f) { return f = factor, W + r * K; }, out);
}

// A head: its padded rows, and the decoder scaled by log2(e).
struct Head {
    Head(const Padded& s, const float* E) : rows(size_t{VOCABULARY} * s.h()), decoder(size_t{VOCABULARY} * s.embedding) {
        for (int b = 0; b < VOCABULARY; ++b)
            std::memcpy(rows + b * s.h(), E + int64_t{b} * s.embedding, sizeof(float) * s.embedding);
        pack(E, VOCABULARY, s.embedding, nullptr, LOG2_E, decoder);
    }
    Buffer rows, decoder;
};

class Expert {
  public:
    // theta: flat body [M] in the order of LSTMSpec.layout.
    Expert(const Padded& s, const float* theta, const Head& head, const float* inside) : blocks(s.depth), head_(&head) {
        const int64_t d = s.width, h = s.embedding;
        const auto take = [&theta](int64_t n) { return std::exchange(theta, theta + n); };
        Buffer project_in;
        if (s.projected()) {
            project_in = Buffer(s.d() * h);
            pack(take(d * h), d, h, nullptr, 1, project_in);
        }
        for (Block& b : blocks) {
            const float* gain_lstm = take(d);
            b.gates_input = gates(s, take(GATES * d * d), gain_lstm);
            b.gates_hidden = gates(s, take(GATES * d * d), nullptr);
            const float* gain_mlp = take(d);
            b.up = Buffer(s.inner() * d);
            pack(take(4 * d * d), 4 * d, d, gain_mlp, 1, b.up);
            b.down = Buffer(s.d() * 4 * d);
            pack(take(4 * d * d), d, 4 * d, nullptr, 1, b.down);
        }
        const float* last = take(d);
        if (s.projected()) {
            project_out = Buffer(s.h() * d);
            pack(take(h * d), h, d, last, 1, project_out);
        } else {
            gain = Buffer(s.d());
            std::memcpy(gain, last, sizeof(float) * d);
        }
        tabulate(s, project_in, inside);
    }

    // A byte's residual stream before block 0, [d()], and its contribution to block 0's gates, [gates()].
    const float* input(const Padded& s, uint8_t byte) const {
        return s.projected() ? inputs_ + byte * s.d() : head_->rows + byte * s.h();
    }
    const float* first_gates(const Padded& s, uint8_t byte) const { return first_gates_ + int64_t{byte} * s.gates(); }
    const float* decoder() const { return head_->decoder; }

    std::vector<Block> blocks;  // block 0 has no gates_input: `first_gates` replaces it
    Buffer project_out, gain;   // only one is used: project_out has the last LayerNorm's gain folded in

  private:
    // Pack four vectors of rows, one per gate, for every vector of units. The factor -log2(e) turns exp(-x) into a
    // power of two, and the candidate uses tanh(x) = 2 sigmoid(2 x) - 1.
    static Buffer gates(const Padded& s, const float* W, const float* gain) {
        const int64_t d = s.width;
        Buffer out(int64_t{s.gates()} * d);
        pack(s.gates(), d, gain, [=](int64_t r, float& factor) -> const float* {
            const int64_t gate = r / VL % GATES, unit = r / VL / GATES * VL + r % VL;
            factor = gate == 2 ? -2 * LOG2_E : -LOG2_E;
            return unit < d ? W + (gate * d + unit) * d : nullptr;
        }, out);
        return out;
    }

    void tabulate(const Padded& s, const float* project_in, const float* inside) {
        const int d = s.d(), h = s.h(), gates = s.gates();
        if (s.projected()) {
            inputs_ = Buffer(size_t{VOCABULARY} * d);
            multiply(project_in, d / VL, s.embedding, head_->rows, h, VOCABULARY,
                     [&](int row, int b, Vec sum) INLINED { store(inputs_ + b * d + row * VL, sum); });
        }
        Buffer normed(size_t{VOCABULARY} * d);
        for (int b = 0; b < VOCABULARY; ++b)
            normalise(input(s, static_cast<uint8_t>(b)), s.width, inside, nullptr, normed + b * d);
        first_gates_ = Buffer(size_t{VOCABULARY} * gates);
        multiply(blocks[0].gates_input, gates / VL, s.width, normed, d, VOCABULARY,
                 [&](int row, int b, Vec sum) INLINED { store(first_gates_ + int64_t{b} * gates + row * VL, sum); });
        blocks[0].gates_input = Buffer();
    }

    const Head* head_;
    Buffer inputs_, first_gates_;
};

struct Ensemble {
    Ensemble(const Sizes& sizes, int experts, const float* theta, int64_t theta_stride, const float* head,
             int64_t head_stride)
        : s(sizes), inside(s.d()) {
        std::fill(inside + 0, inside + s.width, 1.0f);
        heads.reserve(experts);  // experts keep pointers to them
        for (int e = 0; e < (head_stride ? experts : 1); ++e) heads.emplace_back(s, head + e * head_stride);
        for (int e = 0; e < experts; ++e)
            all.emplace_back(s, theta + e * theta_stride, heads[head_stride ? e : 0], inside);
    }
    Padded s;
    Buffer inside;
    std::vector<Head> heads;
    std::vector<Expert> all;
};

// ------------------------------------------------------------------------------------------- a call

struct Request {
    int32_t pairs, time, scored, threads;  // P, T; outputs cover the last `scored` positions
    int64_t rows;                          // of `tokens`
    const int32_t *expert, *sequence;      // of each pair, [P]; pairs of one expert are adjacent
    const uint8_t* tokens;                 // rows of `stride` bytes, one per sequence
    int64_t stride;
    float* states;                         // [P, L, 2, padded D], read and written; null: start from zero and discard
    double* losses;                        // nats of the byte after each scored position, [P, scored], or null
    float* probabilities;                  // next-byte probabilities after the last position, [P, V], or null
};

// The sequences of one expert, in chunks of steps: a row is a sequence at a step, ordered by step. Only the recurrence
// is sequential; all else processes all rows of a chunk at once, so that few sequences also use the weights well.
class Tile {
  public:
    explicit Tile(const Ensemble& m)
        : m_(m), s_(m.s), x_(size_t(MOST) * s_.d()), norm_(size_t(MOST) * s_.d()), spare_(size_t(SEQUENCES) * s_.d()),
          wide_(size_t(MOST) * std::max(s_.gates(), VOCABULARY)), out_(size_t(MOST) * s_.h()) {
        for (int l = 0; l < s_.depth; ++l) {
            h_.emplace_back(size_t(SEQUENCES) * s_.d());
            c_.emplace_back(size_t(SEQUENCES) * s_.d());
        }
    }

    void run(const Request& r, int first, int count) {
        n_ = count, e_ = &m_.all[r.expert[first]];
        for (int i = 0; i < n_; ++i) tokens_[i] = r.tokens + r.sequence[first + i] * r.stride;
        exchange_states(r.states ? r.states + first * s_.state() : nullptr, false);
        const int unscored = r.time - r.scored, longest = MOST / n_;
        for (t_ = 0; t_ < r.time; t_ += steps_) {
            steps_ = std::min(longest, r.time - t_), rows_ = steps_ * n_;
            body();
            const int from = std::max(0, unscored - t_);  // first scored step of the chunk
            if (from >= steps_) continue;
            decode(from * n_);
            if (r.losses) losses(from, r.losses + int64_t{first} * r.scored - unscored, r.scored);
            if (r.probabilities && t_ + steps_ == r.time)
                probabilities(rows_ - n_, r.probabilities + int64_t{first} * VOCABULARY);
        }
        if (r.states) exchange_states(r.states + first * s_.state(), true);
    }

  private:
    void exchange_states(float* states, bool write) {
        const int d = s_.d();
        for (int l = 0; l < s_.depth; ++l)
            for (int part = 0; part < 2; ++part)
                for (int i = 0; i < n_; ++i) {
                    float* own = (part ? c_ : h_)[l] + i * d;
                    float* theirs = states ? states + i * s_.state() + (2 * l + part) * d : nullptr;
                    if (write) std::memcpy(theirs, own, sizeof(float) * d);
                    else if (theirs) std::memcpy(own, theirs, sizeof(float) * d);
                    else std::memset(own, 0, sizeof(float) * d);
                }
    }

    uint8_t byte(int row) const { return tokens_[row % n_][t_ + row / n_]; }

    void body() {
        const int d = s_.d(), gates = s_.gates();
        for (int row = 0; row < rows_; ++row) std::memcpy(x_ + row * d, e_->input(s_, byte(row)), sizeof(float) * d);
        for (int l = 0; l < s_.depth; ++l) {
            const Block& w = e_->blocks[l];
            if (l) {
                normalise_all(nullptr, norm_);
                multiply(w.gates_input, gates / VL, s_.width, norm_, d, rows_,
                         [&](int v, int row, Vec sum) INLINED { store(wide_ + row * gates + v * VL, sum); });
            }
            for (int step = 0; step < steps_; ++step) lstm(l, step);
            normalise_all(nullptr, norm_);
            mlp(w);
        }
        if (!s_.projected()) return normalise_all(e_->gain, out_);
        normalise_all(nullptr, norm_);
        multiply(e_->project_out, s_.h() / VL, s_.width, norm_, d, rows_,
                 [&](int v, int row, Vec sum) INLINED { store(out_ + row * s_.h() + v * VL, sum); });
    }

    void normalise_all(const float* gain, float* y) {
        for (int row = 0; row < rows_; ++row) normalise(x_ + row * s_.d(), s_.width, m_.inside, gain, y + row * s_.d());
    }

    // Take one step of the recurrence for all sequences, adding the new h to the residual.
    void lstm(int l, int step) {
        const Block& w = e_->blocks[l];
        const int64_t d = s_.d(), K = s_.width, unit = GATES * K * VL;
        float* x = x_ + step * n_ * d;
        const auto work = [&](auto P, auto B, int v, int first) INLINED {
            constexpr int U = P() / GATES, N = U * B();
            const int u = v / GATES;
            Vec a[P()][B()];
            for (int b = 0; b < B(); ++b) {
                const int row = step * n_ + first + b;
                const float* input = (l ? wide_ + row * s_.gates() : e_->first_gates(s_, byte(row))) + v * VL;
                for (int p = 0; p < P(); ++p) a[p][b] = load(input + p * VL);
            }
            add_products(w.gates_hidden + u * unit, K, h_[l] + first * d, d, a);
            Vec gate[GATES][N], c[N], h[N];
            EACH_VECTOR for (int g = 0; g < GATES; ++g) gate[g][i] = a[i / B() * GATES + g][i % B()];
            const auto at = [&](int i) INLINED { return (first + i % B()) * d + (u + i / B()) * VL; };
            EACH_VECTOR c[i] = load(c_[l] + at(i));
            cells(gate[0], gate[1], gate[2], gate[3], c, h);
            EACH_VECTOR store(c_[l] + at(i), c[i]);
            EACH_VECTOR store(spare_ + at(i), h[i]);
            EACH_VECTOR store(x + at(i), load(x + at(i)) + h[i]);
        };
        const int rows = GATES * static_cast<int>(d / VL);
        int v = 0;
        if constexpr (FEW_ROWS > GATES)
            if (n_ <= 2)
                for (; v + FEW_ROWS <= rows; v += FEW_ROWS) each_sequences<FEW_ROWS, 2>(v, n_, work);
        for (; v < rows; v += GATES) each_sequences<GATES, 4 * ROWS_AT_ONCE / GATES>(v, n_, work);
        std::swap(h_[l], spare_);
    }

    void mlp(const Block& w) {
        const int d = s_.d(), inner = s_.inner();
        multiply(w.up, inner / VL, s_.width, norm_, d, rows_,
                 [&](int v, int row, Vec sum) INLINED { store(wide_ + row * inner + v * VL, sum); });
        each_four(rows_ * inner, wide_, [](auto& part) INLINED { gelu(part); });
        multiply(w.down, d / VL, 4 * int64_t{s_.width}, wide_, inner, rows_, [&](int v, int row, Vec sum) INLINED {
            float* x = x_ + row * d + v * VL;
            store(x, load(x) + sum);
        });
    }

    // Apply f to n floats, four vectors at a time and the rest one by one.
    template <class F>
    ALWAYS_INLINE static void each_four(int n, float* y, F f) {
        int k = 0;
        for (; k + 4 * VL <= n; k += 4 * VL) {
            Vec part[4];
            for (int i = 0; i < 4; ++i) part[i] = load(y + k + i * VL);
            f(part);
            for (int i = 0; i < 4; ++i) store(y + k + i * VL, part[i]);
        }
        for (; k < n; k += VL) {
            Vec part[1] = {load(y + k)};
            f(part);
            store(y + k, part[0]);
        }
    }

    // Compute base-2 logits of all bytes, [rows][V], for the rows from `first` on.
    void decode(int first) {
        multiply(e_->decoder(), VOCABULARY / VL, s_.embedding, out_ + first * s_.h(), s_.h(), rows_ - first,
                 [&](int v, int row, Vec sum) INLINED { store(wide_ + (first + row) * VOCABULARY + v * VL, sum); });
    }

    static float top(const float* y) {
        Vec most = load(y);
        for (int k = VL; k < VOCABULARY; k += VL) most = max(load(y + k), most);
        return largest(most);
    }

    // Write logsumexp(logits) - target logit of the chunk's steps from `from` on to out [n][time], rows `next` apart.
    void losses(int from, double* out, int64_t next) {
        alignas(64) float sums[MOST + VL], rest[MOST];
        for (int row = from * n_; row < rows_; ++row) {
            const float* y = wide_ + row * VOCABULARY;
            const float most = top(y), target = y[tokens_[row % n_][t_ + row / n_ + 1]];
            Vec sum[4] = {};
            for (int k = 0; k < VOCABULARY; k += 4 * VL) {
                Vec part[4];
                for (int j = 0; j < 4; ++j) part[j] = max(load(y + k + j * VL) - most, splat(-120.0f));
                exp2(part);
                for (int j = 0; j < 4; ++j) sum[j] += part[j];
            }
            sums[row] = total((sum[0] + sum[1]) + (sum[2] + sum[3]));
            rest[row] = most - target;
        }
        for (int row = rows_; row < rows_ + VL; ++row) sums[row] = 1;
        for (int first = from * n_; first < rows_; first += VL) {
            Vec some;
            std::memcpy(&some, sums + first, sizeof some);
            const Wide logs = logarithm(some);
            for (int row = first; row < std::min(first + VL, rows_); ++row)
                out[row % n_ * next + t_ + row / n_] = logs[row - first] + rest[row] * 0.69314718055994531;
        }
    }

    void probabilities(int first, float* out) {
        for (int row = first; row < rows_; ++row, out += VOCABULARY) {
            float* y = wide_ + row * VOCABULARY;
            const float most = top(y);
            Vec sum = {};
            each_four(VOCABULARY, y, [&](auto& part) INLINED {
                for (auto& v : part) v = max(v - most, splat(-120.0f));
                exp2(part);
                for (auto& v : part) sum += v;
            });
            const float all = total(sum);
            for (int v = 0; v < VOCABULARY; ++v) out[v] = y[v] / all;
        }
    }

    const Ensemble& m_;
    const Padded s_;
    const Expert* e_ = nullptr;
    int n_ = 0, t_ = 0, steps_ = 0, rows_ = 0;  // sequences; first step, steps and rows of the chunk
    const uint8_t* tokens_[SEQUENCES];
    Buffer x_, norm_, spare_, wide_, out_;  // residual, LayerNorm, next h, gates or MLP or logits, decoder input
    std::vector<Buffer> h_, c_;             // states per block and sequence
};

struct Job {
    int first, count;  // pairs
};

// Cut the pairs into tiles of one expert each, the largest first, spreading few pairs over all threads.
std::vector<Job> jobs(const Request& r) {
    const int most = std::min(SEQUENCES, (r.pairs + r.threads - 1) / r.threads);
    std::vector<Job> out;
    for (int first = 0; first < r.pairs;) {
        int end = first + 1;
        while (end < r.pairs && end - first < most && r.expert[end] == r.expert[first]) ++end;
        out.push_back({first, end - first});
        first = end;
    }
    std::stable_sort(out.begin(), out.end(), [](const Job& a, const Job& b) { return a.count > b.count; });
    return out;
}

// Status of a call.
enum Status : int { DONE = 0, NO_MEMORY = 1, WRONG_ARGUMENTS = 2 };

constexpr int MOST_WIDTH = 1 << 14, MOST_DEPTH = 1 << 8, MOST_EXPERTS = 1 << 16, MOST_THREADS = 1 << 12,
              MOST_PAIRS = 1 << 30;

bool within(int64_t value, int64_t most) { return value >= 1 && value <= most; }

// Return true if the sizes are an ensemble's, and the arrays, of that many floats, hold its bodies and heads.
bool fits(const Sizes& s, int experts, const float* theta, int64_t floats, const float* head, int64_t head_floats) {
    if (!within(s.width, MOST_WIDTH) || !within(s.depth, MOST_DEPTH) || !within(s.embedding, MOST_WIDTH)) return false;
    const int64_t d = s.width, h = s.embedding, heads = head_floats / (VOCABULARY * h);
    const int64_t body = s.depth * (16 * d * d + 2 * d) + d + (s.projected() ? 2 * h * d : 0);
    return within(experts, MOST_EXPERTS) && theta && floats == experts * body && head &&
           head_floats == heads * VOCABULARY * h && (heads == 1 || heads == experts);
}

// Return true if a request reads only what it was given.
bool fits(const Ensemble& m, const Request& r) {
    const int64_t read = int64_t{r.time} + (r.losses ? 1 : 0);
    if (r.pairs < 0 || r.pairs > MOST_PAIRS || !within(r.threads, MOST_THREADS)) return false;
    if (!within(r.scored, r.time) || r.stride < read) return false;
    if (r.pairs && !(r.expert && r.sequence && r.tokens)) return false;
    for (int i = 0; i < r.pairs; ++i)
        if (r.expert[i] < 0 || r.expert[i] >= static_cast<int>(m.all.size()) || r.sequence[i] < 0 ||
            r.sequence[i] >= r.rows)
            return false;
    return true;
}

bool run(const Ensemble& m, const Request& r) {
    const std::vector<Job> all = jobs(r);
    if (all.empty()) return true;
    std::atomic<size_t> next{0};
    std::atomic<bool> ok{true};
    const auto work = [&] {
        try {
            Tile tile(m);
            for (size_t j; (j = next.fetch_add(1)) < all.size();) tile.run(r, all[j].first, all[j].count);
        } catch (const std::bad_alloc&) {
            ok = false;
        }
    };
    std::vector<std::thread> pool;
    try {
        for (int i = 1; i < std::min<int>(r.threads, static_cast<int>(all.size())); ++i) pool.emplace_back(work);
    } catch (const std::system_error&) {  // continue with fewer threads
    }
    work();
    for (std::thread& t : pool) t.join();
    return ok;
}

}  // namespace
}  // namespace soma

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int soma_infer_request_bytes() { return sizeof(soma::Request); }

// Pack theta [N, M] and head, [N, V, H] or one [1, V, H] that all share, given with their sizes in floats, and set
// *ensemble. Return a status.
EXPORT int soma_infer_open(int width, int depth, int embedding, int experts, const float* theta, int64_t theta_floats,
                           const float* head, int64_t head_floats, void** ensemble) {
    const soma::Sizes sizes{width, depth, embedding};
    if (!soma::fits(sizes, experts, theta, theta_floats, head, head_floats)) return soma::WRONG_ARGUMENTS;
    const int64_t head_size = int64_t{soma::VOCABULARY} * embedding;
    try {
        *ensemble = new soma::Ensemble(sizes, experts, theta, theta_floats / experts, head,
                                       head_floats > head_size ? head_size : 0);
    } catch (const std::bad_alloc&) {
        return soma::NO_MEMORY;
    }
    return soma::DONE;
}

EXPORT void soma_infer_close(void* ensemble) { delete static_cast<soma::Ensemble*>(ensemble); }

// Return the number of floats in one pair's state.
EXPORT int64_t soma_infer_state(const void* ensemble) { return static_cast<const soma::Ensemble*>(ensemble)->s.state(); }

// Return a status.
EXPORT int soma_infer_run(const void* ensemble, const soma::Request* r) {
    const auto& m = *static_cast<const soma::Ensemble*>(ensemble);
    if (!soma::fits(m, *r)) return soma::WRONG_ARGUMENTS;
    return soma::run(m, *r) ? soma::DONE : soma::NO_MEMORY;
}
