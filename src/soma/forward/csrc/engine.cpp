// The C interface of the CPU engine; soma.forward.cpu mirrors `Problem` and documents the arguments.
//
// Threads take whole copies, or tiles if copies are few, and every number is written by one thread in a fixed order, so
// neither the number of threads nor the other work in a call can change a bit.
#include <atomic>
#include <optional>
#include <system_error>
#include <thread>

#include "head.h"
#include "network.h"
#include "probes.h"

namespace soma {
namespace {

struct Problem {
    int32_t width, depth, embedding, experts, batch, time, directions, threads;
    int64_t size;                         // M
    const float *theta, *head;            // [E, M], [E, V, H], with the strides below between experts
    int64_t theta_stride, head_stride;    // in floats
    const uint8_t* tokens;                // [E, B, T + 1]
    uint64_t key;                         // of the probes; the fields from here to `steps` are unused if directions = 0
    uint32_t update;
    int32_t signs;                        // S, copies of a direction
    const uint32_t *expert_ids, *direction_ids, *kept;  // [E], [J], [blocks, 2]
    const float* normals;                 // gaussian directions, [E, J, M], or null
    const float* steps;                   // sign times eps, [E, S]
    double* sequence_losses;              // summed over time, [copies, B], or null
    double* token_losses;                 // [copies, B, T], or null
    float* hidden;                        // [copies, B, T, H], or null

    Sizes sizes() const { return {width, depth, embedding}; }
    int copies_per_expert() const { return directions ? signs * directions : 1; }
    Direction direction(int expert, int j) const { return {key, direction_ids[j], update, expert_ids[expert], kept}; }
};

// Runs worker(next) on every thread; next() hands out 0, 1, ..., and worker stops at the first number without a job.
template <class Worker>
bool parallel(int threads, Worker worker) {
    std::atomic<int> counter{0};
    std::atomic<bool> ok{true};
    const auto body = [&] {
        try {
            worker([&] { return counter.fetch_add(1); });
        } catch (const std::bad_alloc&) {
            ok = false;
        }
    };
    std::vector<std::thread> pool;
    try {
        for (int i = 1; i < threads; ++i) pool.emplace_back(body);
    } catch (const std::system_error&) {  // fewer threads than requested do the same work
    }
    body();
    for (std::thread& t : pool) t.join();
    return ok;
}

// The batch is cut into tiles of two vectors, and one of a single vector if that fits the remainder.
struct Part {
    int first, sequences;
};

std::vector<Part> parts(int batch) {
    std::vector<Part> out;
    for (int first = 0; first < batch; first += Tile<2>::LANES)
        out.push_back({first, std::min(Tile<2>::LANES, batch - first)});
    return out;
}

// One thread's copy and tiles.
class Worker {
  public:
    explicit Worker(const Problem& p)
        : p_(p), theta_(p.directions ? padded(p.size, BLOCK) : 0), weights_(p.sizes()), wide_(p.sizes(), weights_),
          narrow_(p.sizes(), weights_) {}

    void run(int copy, Part part) {
        if (copy != packed_) pack(copy);
        if (part.sequences <= Tile<1>::LANES)
            run(narrow_, copy, part);
        else
            run(wide_, copy, part);
    }

  private:
    // Copies of an expert are (direction, sign).
    void pack(int copy) {
        const int e = copy / p_.copies_per_expert();
        const float* theta = p_.theta + e * p_.theta_stride;
        if (p_.directions) {
            const int j = copy % p_.copies_per_expert() / p_.signs;
            const float step = p_.steps[e * p_.signs + copy % p_.signs];
            if (p_.normals)
                perturb(theta, p_.size, p_.normals + (int64_t{e} * p_.directions + j) * p_.size, step, theta_);
            else
                perturb(theta, p_.size, p_.direction(e, j), step, theta_);
            theta = theta_;
        }
        weights_.pack(theta, p_.head + e * p_.head_stride);
        packed_ = copy;
    }

    template <int NV>
    void run(Tile<NV>& tile, int copy, Part part) {
        const int64_t expert = copy / p_.copies_per_expert(), row = p_.time + 1;
        const int64_t first = int64_t{copy} * p_.batch + part.first;  // first row of the results
        const int most = static_cast<int>(p_.sizes().steps());
        tile.start(p_.tokens + (expert * p_.batch + part.first) * row, row, part.sequences);
        double total[Tile<NV>::LANES] = {};
        for (int t = 0; t < p_.time; t += most) {
            const int steps = std::min(most, p_.time - t);
            tile.body(t, steps);
            for (int i = 0; i < steps; ++i) results(tile, t, i, first, part.sequences, total);
        }
        if (p_.sequence_losses) std::copy(total, total + part.sequences, p_.sequence_losses + first);
    }

    // Writes what is wanted of step i after tile.body(t, ..), and adds its losses to those of the sequences.
    template <int NV>
    void results(Tile<NV>& tile, int t, int i, int64_t first, int sequences, double (&total)[Tile<NV>::LANES]) {
        if (p_.hidden)
            for (int b = 0; b < sequences; ++b)
                tile.hidden(i, b, p_.hidden + ((first + b) * p_.time + t + i) * p_.embedding);
        if (!p_.sequence_losses && !p_.token_losses) return;
        double loss[Tile<NV>::LANES];
        tile.decode(t, i, loss);
        for (int b = 0; b < Tile<NV>::LANES; ++b) total[b] += loss[b];
        if (p_.token_losses)
            for (int b = 0; b < sequences; ++b) p_.token_losses[(first + b) * p_.time + t + i] = loss[b];
    }

    const Problem& p_;
    int packed_ = -1;
    Buffer theta_;
    Weights weights_;
    Tile<2> wide_;
    Tile<1> narrow_;
};

bool forward(const Problem& p) {
    const std::vector<Part> all = parts(p.batch);
    const int copies = p.experts * p.copies_per_expert(), n = static_cast<int>(all.size());
    const bool whole = copies % p.threads == 0 || copies >= 4 * p.threads;
    const int jobs = whole ? copies : copies * n;
    return parallel(std::min(p.threads, jobs), [&](auto next) {
        Worker worker(p);
        for (int job; (job = next()) < jobs;) {
            if (whole)
                for (const Part& part : all) worker.run(job, part);
            else
                worker.run(job / n, all[job % n]);
        }
    });
}

// Writes the gradients of the experts' mean losses in the heads to out [E, V, H], for a few experts at a time, so that
// their hidden states and the gradients of their sequences fit in memory.
bool head_gradient(const Problem& whole, float* out) {
    constexpr int64_t FLOATS = int64_t{1} << 26;
    const int64_t H = whole.embedding, B = whole.batch, T = whole.time;
    const int64_t states = B * T * H, gradients = B * static_cast<int64_t>(SequenceGradient::floats(whole.embedding));
    const int most = static_cast<int>(std::clamp<int64_t>(FLOATS / (states + gradients), 1, whole.experts));
    const Buffer hidden(most * states), gradient(most * gradients);
    for (int first = 0; first < whole.experts; first += most) {
        Problem p = whole;
        p.experts = std::min(most, whole.experts - first);
        p.theta += first * p.theta_stride, p.head += first * p.head_stride, p.tokens += first * B * (T + 1);
        p.hidden = hidden;
        if (!forward(p)) return false;
        const int jobs = p.experts * p.batch;
        const bool ok = parallel(std::min(p.threads, jobs), [&](auto next) {
            SequenceGradient one(p.embedding);
            std::optional<Decoder> decoder;
            int expert = -1;
            for (int job; (job = next()) < jobs;) {
                if (job / p.batch != expert) decoder.emplace(p.head + (expert = job / p.batch) * p.head_stride, p.embedding);
                one.compute(*decoder, hidden + job * T * H, p.tokens + job * (T + 1) + 1, p.time,
                            gradient + job * (gradients / B));
            }
        });
        if (!ok) return false;
        for (int e = 0; e < p.experts; ++e)
            for (int64_t k = 0; k < H; ++k) {
                double total[VOCABULARY] = {};
                for (int64_t b = 0; b < B; ++b)
                    for (int v = 0; v < VOCABULARY; ++v)
                        total[v] += gradient[e * gradients + b * (gradients / B) + k * VOCABULARY + v];
                for (int v = 0; v < VOCABULARY; ++v)
                    out[((first + e) * int64_t{VOCABULARY} + v) * H + k] = static_cast<float>(total[v] / (B * T));
            }
    }
    return true;
}

int64_t blocks(const Problem& p) { return (p.size + BLOCK - 1) / BLOCK; }

void packed(const Problem& p, uint32_t* out) {
    for (int e = 0; e < p.experts; ++e)
        for (int j = 0; j < p.directions; ++j)
            for (int64_t k = 0; k < blocks(p); ++k, out += 4) {
                const Philox words = p.direction(e, j).block(k);
                std::memcpy(out, words.word, sizeof words.word);
            }
}

bool combine(const Problem& p, const double* coefficients, double* out) {
    constexpr int CHUNK = 64;  // blocks per job
    const int parts = static_cast<int>((blocks(p) + CHUNK - 1) / CHUNK), jobs = p.experts * parts;
    return parallel(std::min(p.threads, jobs), [&](auto next) {
        for (int job; (job = next()) < jobs;) {
            const int e = job / parts;
            const int64_t first = int64_t{job % parts} * CHUNK, last = std::min(first + CHUNK, blocks(p));
            for (int64_t k = first; k < last; ++k) {
                Double total[2 * BLOCK / VL] = {};
                for (int j = 0; j < p.directions; ++j)
                    add_block(p.direction(e, j).block(k), coefficients[int64_t{e} * p.directions + j], total);
                const int64_t n = std::min<int64_t>(BLOCK, p.size - k * BLOCK);
                std::memcpy(out + e * p.size + k * BLOCK, total, sizeof(double) * n);
            }
        }
    });
}

}  // namespace
}  // namespace soma

// Functions return 0, or 1 if memory runs out.
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

EXPORT void soma_philox(const uint32_t* counter, uint64_t key, uint32_t* out) {
    const soma::Philox words = soma::philox({{counter[0], counter[1], counter[2], counter[3]}}, key);
    std::memcpy(out, words.word, sizeof words.word);
}

// Runs multiply-adds alone, for the arithmetic peak in benchmarks/engine.py, and returns the number of operations.
EXPORT double soma_peak(int64_t rounds) {
    using namespace soma;
    constexpr int N = 10;  // enough independent chains to hide the latency, few enough for 16 registers
    volatile float factor = 0.999f;
    const Vec scale = splat(factor);
    Vec sum[N];
    EACH_VECTOR sum[i] = splat(static_cast<float>(i));  // equal chains would be computed only once
    for (int64_t round = 0; round < rounds; ++round) EACH_VECTOR sum[i] = fma(sum[i], scale, scale);
    volatile float used = 0;
    EACH_VECTOR used = used + sum[i][0];
    return 2.0 * N * VL * static_cast<double>(rounds);
}

EXPORT int soma_forward(const soma::Problem* p) { return !soma::forward(*p); }

EXPORT int soma_head_gradient(const soma::Problem* p, float* out) {
    try {
        return !soma::head_gradient(*p, out);
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

// Returns 1 if fused multiply-adds are emulated, which gives the same bits but is slow.
EXPORT int soma_emulated() {
#if defined(SOMA_EMULATED_FMA)
    return 1;
#else
    return 0;
#endif
}

EXPORT int soma_packed(const soma::Problem* p, uint32_t* out) {
    soma::packed(*p, out);
    return 0;
}

EXPORT int soma_combine(const soma::Problem* p, const double* coefficients, double* out) {
    return !soma::combine(*p, coefficients, out);
}
