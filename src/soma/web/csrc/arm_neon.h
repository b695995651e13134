// The one thing that simd.h takes from NEON, whose vectors are WebAssembly's size: four floats.
//
// WebAssembly has no fused multiply-add. The emulation that simd.h has for such machines keeps every bit and costs an
// order of magnitude; here the product is rounded before the sum, so that losses differ from a processor's by rounding,
// and are the same in every browser.
#pragma once

typedef float float32x4_t __attribute__((vector_size(16)));

static inline __attribute__((always_inline)) float32x4_t vfmaq_f32(float32x4_t c, float32x4_t a, float32x4_t b) {
    return a * b + c;
}
