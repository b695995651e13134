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

// Returns bits first, first + 1, ... of a word, one per lane, as 0 or 1.
INLINE Int bits(uint32_t word, int first) {
    Int lane;
    for (int i = 0; i < VL; ++i) lane[i] = first + i;
    return ((Int{} + static_cast<int32_t>(word)) >> lane) & 1;
}

// Computes out = theta + step z, rounded once; out has room for whole blocks.
inline void perturb(const float* theta, int64_t size, const Direction& z, float step, float* out) {
    int32_t magnitude;
    std::memcpy(&magnitude, &step, sizeof step);
    for (int64_t k = 0; k * BLOCK < size; ++k, out += BLOCK) {
        const Philox words = z.block(k);
        std::memcpy(out, theta + k * BLOCK, sizeof(float) * std::min<int64_t>(BLOCK, size - k * BLOCK));
        for (int i = 0; i < BLOCK; i += VL) {
            const int half = i / 32 * 2;
            const Int negative = bits(words.word[half + 1], i % 32), kept = -bits(words.word[half], i % 32);
            store(out + i, load(out + i) + (Vec)(((negative << 31) ^ magnitude) & kept));
        }
    }
}

// Does the same for a direction given as numbers.
inline void perturb(const float* theta, int64_t size, const float* z, float step, float* out) {
    for (int64_t i = 0; i < size; ++i) out[i] = std::fma(step, z[i], theta[i]);
}

// Adds coefficient z to total over one block of coordinates.
inline void add_block(const Philox& words, double coefficient, double* total) {
    for (int i = 0; i < BLOCK; i += VL) {
        const int half = i / 32 * 2;
        const Int z = (1 - (bits(words.word[half + 1], i % 32) << 1)) & -bits(words.word[half], i % 32);
        Wide* sum = reinterpret_cast<Wide*>(total + i);
        *sum += __builtin_convertvector(z, Wide) * coefficient;
    }
}

}  // namespace soma
