// The C interface of the CPU engine; soma.forward.cpu mirrors `Problem` and documents the arguments.
//
// Threads take whole copies, or groups of tiles where copies are few, and every number is written by one thread in a
// fixed order: neither the number of threads nor what else shares a call can change a bit.
#include <atomic>
#include <system_error>
#include <thread>

#include "network.h"
#include "probes.h"

namespace soma {
namespace {

// Weights beyond this are streamed from outer caches: several tiles then share each panel.
constexpr int64_t CACHED_BYTES = 1 << 20;
constexpr int SHARED_TILES = 4;

struct Problem {
    int32_t width, depth, embedding, experts, batch, time, directions, threads;
    int64_t size;                         // M
    const float *theta, *head;            // [E, M], [E, V, H], rows of experts apart by the strides below
    int64_t theta_stride, head_stride;    // in floats
    const uint8_t* tokens;                // [E, B, T + 1]
    uint64_t key;                         // of the probes; the fields from here to `steps` are unused if directions = 0
    uint32_t update, reserved;
    const uint32_t *expert_ids, *direction_ids, *kept;  // [E], [J], [blocks, 2]
    const float* steps;                   // eps, [E]
    double* sequence_losses;              // summed over time, [copies, B], or null
    double* token_losses;                 // [copies, B, T], or null
    float* hidden;                        // [copies, B, T, H], or null

    Sizes sizes() const { return {width, depth, embedding}; }
    int copies_per_expert() const { return directions ? 2 * directions : 1; }
    Direction direction(int expert, int j) const { return {key, direction_ids[j], update, expert_ids[expert], kept}; }
};

// Runs worker(next) on every thread; next() hands out 0, 1, ... and worker stops at the first number it has no job for.
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
    } catch (const std::system_error&) {  // fewer threads than wished do the same work
    }
    body();
    for (std::thread& t : pool) t.join();
    return ok;
}

// Which sequences run together: full tiles of two vectors, several at once where weights are large, then one narrower
// tile if one vector holds the rest.
struct Group {
    int first, sequences;
};

std::vector<Group> groups(const Problem& p) {
    #ifdef X1
    constexpr int full = VL;
#else
    constexpr int full = Tile<2>::LANES;
#endif
    
#ifndef XG
#define XG 1
#endif
#ifndef XS
#define XS SHARED_TILES
#endif
const int together = full * (p.size * int64_t{sizeof(float)} > CACHED_BYTES ? XS : XG);
    std::vector<Group> out;
    int first = 0;
    const int rest = p.batch % full <= VL ? p.batch % full : 0;
    while (first < p.batch - rest) {
        const int n = std::min(together, p.batch - rest - first);
        out.push_back({first, n});
        first += n;
    }
    if (rest) out.push_back({first, rest});
    return out;
}

template <int NV>
class Runner {
  public:
    Runner(const Problem& p, const Weights& w) : p_(p), s_(p.sizes()), step_(s_, w, tiles_) {}

    void run(int copy, Group g) {
        const int lanes = Tile<NV>::LANES, row = p_.time + 1;
        const uint8_t* tokens = p_.tokens + int64_t{copy / p_.copies_per_expert()} * p_.batch * row;
        const size_t n = (g.sequences + lanes - 1) / lanes;
        while (tiles_.size() > n) tiles_.pop_back();
        while (tiles_.size() < n) tiles_.emplace_back(s_);
        for (size_t i = 0; i < n; ++i) {
            const int first = g.first + static_cast<int>(i) * lanes;
            const int last = std::min(first + lanes, g.first + g.sequences);
            tiles_[i].start(s_, tokens + int64_t{first} * row, row, last - first);
        }
        for (int t = 0; t < p_.time; ++t) {
            step_.body(t);
            if (p_.hidden) write_hidden(copy, g, t);
            if (p_.sequence_losses || p_.token_losses) step_.decode(t);
            if (p_.token_losses) write_token_losses(copy, g, t);
        }
        if (p_.sequence_losses) each(g, [&](Tile<NV>& tile, int lane, int b) {
            p_.sequence_losses[int64_t{copy} * p_.batch + b] = tile.loss[lane];
        });
    }

  private:
    template <class Use>
    void each(Group g, Use use) {
        for (int i = 0; i < g.sequences; ++i) use(tiles_[i / Tile<NV>::LANES], i % Tile<NV>::LANES, g.first + i);
    }

    void write_hidden(int copy, Group g, int t) {
        each(g, [&](Tile<NV>& tile, int lane, int b) {
            float* row = p_.hidden + ((int64_t{copy} * p_.batch + b) * p_.time + t) * p_.embedding;
            for (int k = 0; k < p_.embedding; ++k) row[k] = tile.out[k * Tile<NV>::LANES + lane];
        });
    }

    void write_token_losses(int copy, Group g, int t) {
        each(g, [&](Tile<NV>& tile, int lane, int b) {
            p_.token_losses[(int64_t{copy} * p_.batch + b) * p_.time + t] = tile.loss[lane];
            tile.loss[lane] = 0;
        });
    }

    const Problem& p_;
    Sizes s_;
    std::vector<Tile<NV>> tiles_;
    Step<NV> step_;
};

class Worker {
  public:
    explicit Worker(const Problem& p)
        : p_(p), theta_(p.directions ? padded(p.size, BLOCK) : 0), weights_(p.sizes()), wide_(p, weights_),
          narrow_(p, weights_) {}

    void run(int copy, Group g) {
        if (copy != packed_) pack(copy);
        
#ifdef X1
        if (true)
#else
        if (g.sequences <= VL)
#endif

            narrow_.run(copy, g);
        else
            wide_.run(copy, g);
    }

  private:
    // Copies of an expert are (direction, sign), the positive sign first.
    void pack(int copy) {
        const int e = copy / p_.copies_per_expert(), j = copy % p_.copies_per_expert() / 2;
        const float* theta = p_.theta + e * p_.theta_stride;
        if (p_.directions) {
            perturb(theta, p_.size, p_.direction(e, j), copy % 2 ? -p_.steps[e] : p_.steps[e], theta_);
            theta = theta_;
        }
        weights_.pack(theta, p_.head + e * p_.head_stride);
        packed_ = copy;
    }

    const Problem& p_;
    int packed_ = -1;
    Buffer theta_;
    Weights weights_;
    Runner<2> wide_;
    Runner<1> narrow_;
};

bool forward(const Problem& p) {
    const std::vector<Group> all = groups(p);
    const int copies = p.experts * p.copies_per_expert(), parts = static_cast<int>(all.size());
    const bool whole = copies % p.threads == 0 || copies >= 4 * p.threads;
    const int jobs = whole ? copies : copies * parts;
    return parallel(std::min(p.threads, jobs), [&](auto next) {
        Worker worker(p);
        for (int job; (job = next()) < jobs;) {
            if (whole)
                for (const Group& g : all) worker.run(job, g);
            else
                worker.run(job / parts, all[job % parts]);
        }
    });
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
    constexpr int CHUNK = 64;  // blocks in one job
    const int parts = static_cast<int>((blocks(p) + CHUNK - 1) / CHUNK), jobs = p.experts * parts;
    return parallel(std::min(p.threads, jobs), [&](auto next) {
        for (int job; (job = next()) < jobs;) {
            const int e = job / parts;
            const int64_t first = int64_t{job % parts} * CHUNK, last = std::min(first + CHUNK, blocks(p));
            for (int64_t k = first; k < last; ++k) {
                alignas(64) double total[BLOCK] = {};
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

// Functions return 0, or 1 when memory ran out.
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

EXPORT int soma_forward(const soma::Problem* p) { return !soma::forward(*p); }

EXPORT int soma_packed(const soma::Problem* p, uint32_t* out) {
    soma::packed(*p, out);
    return 0;
}

EXPORT int soma_combine(const soma::Problem* p, const double* coefficients, double* out) {
    return !soma::combine(*p, coefficients, out);
}
