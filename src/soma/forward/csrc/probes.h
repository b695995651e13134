// Perturbation directions from their counters, with the same words as soma.forward.probes, bit for bit.
//
// Coordinate i takes its bits from block i / 64; words 0 and 2 of a block mark which of its 64 coordinates are
// non-zero, words 1 and 3 which are negative, lowest bit first.
#pragma once

#include <algorithm>

#include "simd.h"

namespace soma {

constexpr int BLOCK = 64;  // coordinates in one Philox block

struct Philox {
    uint32_t word[4];
};

// Philox4x32-10 (Salmon et al., SC 2011).
inline Philox philox(Philox c, uint64_t key) {
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = uint64_t{0xD2511F53u} * c.word[0], p1 = uint64_t{0xCD9E8D57u} * c.word[2];
        c = {{static_cast<uint32_t>(p1 >> 32) ^ c.word[1] ^ k0, static_cast<uint32_t>(p1),
              static_cast<uint32_t>(p0 >> 32) ^ c.word[3] ^ k1, static_cast<uint32_t>(p0)}};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

struct Direction {
    uint64_t key;
    uint32_t direction, update, expert;
    const uint32_t* kept;  // bits of the coordinates that no probe zeroes, [blocks][2]

    Philox block(int64_t k) const {
        Philox words = philox({{static_cast<uint32_t>(k), direction, update, expert}}, key);
        words.word[0] |= kept[2 * k];
        words.word[2] |= kept[2 * k + 1];
        return words;
    }
};

// Returns a word in every lane, moved so that bit first + i is the highest of lane i.
INLINE Int highest(uint32_t word, int first) {
    Int left;
    for (int i = 0; i < VL; ++i) left[i] = 31 - first - i;
    return (Int{} + static_cast<int32_t>(word)) << left;
}
INLINE Word highest(uint64_t word, int first) {
    Word left;
    for (int i = 0; i < VL / 2; ++i) left[i] = 63 - first - i;
    return (Word{} + static_cast<int64_t>(word)) << left;
}

// Computes out = theta + step z, rounded once; out has room for whole blocks.
inline void perturb(const float* theta, int64_t size, const Direction& z, float step, float* out) {
    constexpr int32_t SIGN = INT32_MIN;
    int32_t magnitude;
    std::memcpy(&magnitude, &step, sizeof step);
    const auto block = [&](int64_t k, const float* in) INLINED {
        const Philox words = z.block(k);
#pragma GCC unroll 16
        for (int i = 0; i < BLOCK; i += VL) {
            const int half = i / 32 * 2;
            const Int negative = highest(words.word[half + 1], i % 32), kept = highest(words.word[half], i % 32) >> 31;
            store(out + k * BLOCK + i, load_anywhere(in + i) + (Vec)(((negative & SIGN) ^ magnitude) & kept));
        }
    };
    const int64_t whole = size / BLOCK, rest = size % BLOCK;
    for (int64_t k = 0; k < whole; ++k) block(k, theta + k * BLOCK);
    if (rest) {
        float last[BLOCK] = {};
        std::memcpy(last, theta + whole * BLOCK, sizeof(float) * rest);
        block(whole, last);
    }
}

// Does the same for a direction given as numbers.
inline void perturb(const float* theta, int64_t size, const float* z, float step, float* out) {
    for (int64_t i = 0; i < size; ++i) out[i] = std::fma(step, z[i], theta[i]);
}

// Adds coefficient z to total over one block of coordinates.
INLINE void add_block(const Philox& words, double coefficient, Double (&total)[2 * BLOCK / VL]) {
    constexpr int64_t SIGN = INT64_MIN;
    const uint64_t kept = words.word[0] | uint64_t{words.word[2]} << 32;
    const uint64_t negative = words.word[1] | uint64_t{words.word[3]} << 32;
    int64_t magnitude;
    std::memcpy(&magnitude, &coefficient, sizeof coefficient);
#pragma GCC unroll 32
    for (int i = 0; i < 2 * BLOCK / VL; ++i) {
        const int first = i * VL / 2;
        total[i] += (Double)(((highest(negative, first) & SIGN) ^ magnitude) & (highest(kept, first) >> 63));
    }
}

}  // namespace soma
