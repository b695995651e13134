// Vectors of VL sequences. The batch lies in the lanes, so no function below sums across a vector.
//
// They are compiler vector types (GCC and Clang), so one source serves every instruction set. Every processor and
// compiler computes the same bits: approximations are plain arithmetic in a fixed order (no rcp or rsqrt estimates,
// whose bits differ between makers), fused multiply-adds are explicit (`fma`), and the compiler may fuse nothing else
// (-ffp-contract=off, flags.json).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__SSE__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define INLINE static ALWAYS_INLINE
#define INLINED __attribute__((always_inline))  // for lambdas

namespace soma {

// VL: lanes per vector. ROWS: matrix rows that a micro-kernel accumulates for two vectors of lanes at once; a multiple
// of 4 (the gates of one LSTM unit) that fits the register file.
#if defined(__AVX512F__)
constexpr int VL = 16, ROWS = 8;
#elif defined(__AVX__)
constexpr int VL = 8, ROWS = 4;
#elif defined(__aarch64__)
constexpr int VL = 4, ROWS = 8;
#else
constexpr int VL = 4, ROWS = 4;
#endif

typedef float Vec __attribute__((vector_size(4 * VL), may_alias));
typedef int32_t Int __attribute__((vector_size(4 * VL), may_alias));
typedef double Wide __attribute__((vector_size(8 * VL), may_alias));
typedef int64_t Long __attribute__((vector_size(8 * VL), may_alias));
typedef double Double __attribute__((vector_size(4 * VL), may_alias));
typedef int64_t Word __attribute__((vector_size(4 * VL), may_alias));
typedef float Loose __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef float LooseQuad __attribute__((vector_size(16), aligned(4), may_alias));
typedef float Quad __attribute__((vector_size(16), may_alias));

constexpr float LOG2_E = 1.4426950408889634f;

INLINE Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
INLINE Vec load_anywhere(const float* p) { return *reinterpret_cast<const Loose*>(p); }
INLINE Quad four(const float* p) { return *reinterpret_cast<const LooseQuad*>(p); }
INLINE void store(float* p, Vec a) { *reinterpret_cast<Vec*>(p) = a; }
INLINE Vec splat(float a) { return a - Vec{}; }  // a sum would turn -0 into 0

// Returns a * b + c, rounded once.
#if defined(__AVX512F__)
INLINE Vec fma(Vec a, Vec b, Vec c) { return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#elif defined(__FMA__)
INLINE Vec fma(Vec a, Vec b, Vec c) { return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#elif defined(__aarch64__)
INLINE Vec fma(Vec a, Vec b, Vec c) { return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
#else
#define SOMA_EMULATED_FMA
// In float64 the product of two floats is exact. If its sum with c is rounded to odd (an inexact sum to the neighbour
// whose last bit is set), rounding that to float32 gives the same result as rounding the exact sum (Boldo and
// Melquiond, IEEE Transactions on Computers 57(4), 2008).
INLINE Vec fma(Vec a, Vec b, Vec c) {
    const Wide product = __builtin_convertvector(a, Wide) * __builtin_convertvector(b, Wide);
    const Wide other = __builtin_convertvector(c, Wide), sum = product + other, rest = sum - product;
    const Wide lost = (product - (sum - rest)) + (other - rest);  // exact (Knuth's two-sum)
    const Long inexact = (Long)(lost > 0.0) | (Long)(lost < 0.0);           // not for infinity and NaN
    const Long outwards = ((Long)(lost > 0.0) ^ (Long)(sum > 0.0)) | 1;  // 1 or -1: away from zero or towards it
    const Long even = ((Long)sum & 1) - 1;
    return __builtin_convertvector((Wide)((Long)sum + (outwards & inexact & even)), Vec);
}
#endif
INLINE Vec fma(Vec a, Vec b, float c) { return fma(a, b, splat(c)); }
INLINE Vec fma(Vec a, float b, float c) { return fma(a, splat(b), splat(c)); }

// Return min(a, b) and max(a, b), and keep a NaN in a. Compilers turn the plain expression into a comparison and a
// blend, so the single x86 instruction is named explicitly.
#if defined(__AVX512F__)
INLINE Vec min(Vec a, Vec b) { return (Vec)_mm512_min_ps((__m512)b, (__m512)a); }
INLINE Vec max(Vec a, Vec b) { return (Vec)_mm512_max_ps((__m512)b, (__m512)a); }
#elif defined(__AVX__)
INLINE Vec min(Vec a, Vec b) { return (Vec)_mm256_min_ps((__m256)b, (__m256)a); }
INLINE Vec max(Vec a, Vec b) { return (Vec)_mm256_max_ps((__m256)b, (__m256)a); }
#elif defined(__SSE__)
INLINE Vec min(Vec a, Vec b) { return (Vec)_mm_min_ps((__m128)b, (__m128)a); }
INLINE Vec max(Vec a, Vec b) { return (Vec)_mm_max_ps((__m128)b, (__m128)a); }
#else
INLINE Vec min(Vec a, Vec b) { return b < a ? b : a; }
INLINE Vec max(Vec a, Vec b) { return b > a ? b : a; }
#endif
INLINE Vec clamp(Vec a, float low, float high) { return min(max(a, splat(low)), splat(high)); }

// The functions below process N vectors at a time and finish each step for all of them before the next: their chains of
// dependent operations are long, and a processor looks ahead over a limited number of instructions.
#define EACH_VECTOR _Pragma("GCC unroll 16") for (int i = 0; i < N; ++i)

// Computes y = 2^y for |y| < 126; relative error 2e-7 (minimax polynomial of degree 5 on [-1/2, 1/2]).
template <int N>
INLINE void exp2(Vec (&y)[N]) {
    Vec shifted[N], p[N];
    EACH_VECTOR shifted[i] = y[i] + 12582912.0f;  // 1.5 * 2^23: the low bits of the sum are y rounded to an integer
    EACH_VECTOR y[i] -= shifted[i] - 12582912.0f;
    EACH_VECTOR p[i] = fma(y[i], 1.3276472454890609e-3f, 9.675541892647743e-3f);
    EACH_VECTOR p[i] = fma(p[i], y[i], 5.550713092088699e-2f);
    EACH_VECTOR p[i] = fma(p[i], y[i], 2.4022120237350464e-1f);
    EACH_VECTOR p[i] = fma(p[i], y[i], 6.931469440460205e-1f);
    EACH_VECTOR p[i] = fma(p[i], y[i], 1.0f);
    EACH_VECTOR y[i] = (Vec)((Int)p[i] + ((Int)shifted[i] << 23));
}

// Computes a = 1 / a for normal positive a; relative error 1e-7. The bits of a float are nearly its logarithm, so
// subtracting them gives the reciprocal to 5 %; one third-order and one Newton step refine it.
template <int N>
INLINE void reciprocal(Vec (&a)[N]) {
    Vec y[N], e[N];
    EACH_VECTOR y[i] = (Vec)(0x7ef31000 - (Int)a[i]);
    EACH_VECTOR e[i] = fma(-a[i], y[i], 1.0f);
    EACH_VECTOR e[i] = fma(e[i], e[i], e[i]);
    EACH_VECTOR y[i] = fma(y[i], e[i], y[i]);
    EACH_VECTOR e[i] = fma(-a[i], y[i], 1.0f);
    EACH_VECTOR a[i] = fma(y[i], e[i], y[i]);
}

// Computes x = GELU(x) = x (1/2 + x P(x^2) / Q(x^2)), as exact as erf in float32: 2.4e-7 max(1, |x|). P and Q are a
// minimax fit for |x| <= 5.2, beyond which the normal distribution function is 0 or 1 to float32.
template <int N>
INLINE void gelu(Vec (&x)[N]) {
    Vec c[N], t[N], p[N], q[N];
    EACH_VECTOR c[i] = clamp(x[i], -5.2f, 5.2f);
    EACH_VECTOR t[i] = c[i] * c[i];
    EACH_VECTOR q[i] = fma(t[i], 5.22512152656418e-7f, 1.1848437861772254e-4f);
    EACH_VECTOR p[i] = fma(t[i], 6.113921244832454e-6f, 3.2920570811256766e-4f);
    EACH_VECTOR q[i] = fma(q[i], t[i], 2.785617718473077e-3f);
    EACH_VECTOR p[i] = fma(p[i], t[i], 5.6082685478031635e-3f);
    EACH_VECTOR q[i] = fma(q[i], t[i], 3.810717537999153e-2f);
    EACH_VECTOR p[i] = fma(p[i], t[i], 5.088363587856293e-2f);
    EACH_VECTOR q[i] = fma(q[i], t[i], 2.942032217979431e-1f);
    EACH_VECTOR p[i] = fma(p[i], t[i], 3.989414572715759e-1f);
    EACH_VECTOR q[i] = fma(q[i], t[i], 1.0f);
    EACH_VECTOR p[i] = p[i] * c[i];
    reciprocal(q);
    EACH_VECTOR x[i] = x[i] * fma(p[i], q[i], 0.5f);
}

// Returns the natural logarithm of normal positive a, in double: 2 atanh((m - 1) / (m + 1)) for the mantissa m in
// [1/sqrt2, sqrt2). NaN and infinity give NaN, through a - a.
INLINE Wide logarithm(Vec a) {
    const Int bits = (Int)a - 0x3f3504f3;
    const Int exponent = bits >> 23;
    const Vec m = (Vec)((bits & 0x007fffff) + 0x3f3504f3);
    const Vec s = (m - 1.0f) / (m + 1.0f) + (a - a);
    const Vec t = s * s;
    Vec p = fma(t, 2.0f / 9, 2.0f / 7);
    p = fma(p, t, 2.0f / 5);
    p = fma(p, t, 2.0f / 3);
    const Vec tail = p * t * s;
    return __builtin_convertvector(exponent, Wide) * 0.69314718055994531 + __builtin_convertvector(s, Wide) * 2.0 +
           __builtin_convertvector(tail, Wide);
}

// Returns 1 / sqrt(a) for normal positive a; relative error 1e-7. Halving the bits halves the logarithm; three Newton
// steps refine it.
INLINE Vec reciprocal_root(Vec a) {
    Vec y = (Vec)(0x5f3759df - ((Int)a >> 1));
    for (int step = 0; step < 3; ++step) y = y * fma(a * -0.5f, y * y, 1.5f);
    return y;
}

template <int A, int B, int C, int D>
INLINE Quad shuffle(Quad p, Quad q) {
#if defined(__clang__)
    return __builtin_shufflevector(p, q, A, B, C, D);
#else
    typedef int32_t Index __attribute__((vector_size(16)));
    return __builtin_shuffle(p, q, Index{A, B, C, D});
#endif
}

INLINE void transpose(Quad (&m)[4]) {
    const Quad a = shuffle<0, 4, 1, 5>(m[0], m[1]), b = shuffle<2, 6, 3, 7>(m[0], m[1]);
    const Quad c = shuffle<0, 4, 1, 5>(m[2], m[3]), d = shuffle<2, 6, 3, 7>(m[2], m[3]);
    m[0] = shuffle<0, 1, 4, 5>(a, c);
    m[1] = shuffle<2, 3, 6, 7>(a, c);
    m[2] = shuffle<0, 1, 4, 5>(b, d);
    m[3] = shuffle<2, 3, 6, 7>(b, d);
}

// Sets y[j stride + i] = row[i][first + j] for VL rows and 4 columns.
#if defined(__AVX512F__)
INLINE void store_columns(const float* const* row, int first, float* y, int stride) {
    __m512 m[4];  // rows j, j + 4, j + 8, j + 12
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
        const auto four = [&](int i) INLINED { return _mm_load_ps(row[j + 4 * i] + first); };
        m[j] = _mm512_broadcast_f32x4(four(0));
        m[j] = _mm512_mask_broadcast_f32x4(m[j], 0x00f0, four(1));
        m[j] = _mm512_mask_broadcast_f32x4(m[j], 0x0f00, four(2));
        m[j] = _mm512_mask_broadcast_f32x4(m[j], 0xf000, four(3));
    }
    const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(m[0], m[1]));
    const __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(m[0], m[1]));
    const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(m[2], m[3]));
    const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(m[2], m[3]));
    store(y, (Vec)_mm512_unpacklo_pd(a, c));
    store(y + stride, (Vec)_mm512_unpackhi_pd(a, c));
    store(y + 2 * stride, (Vec)_mm512_unpacklo_pd(b, d));
    store(y + 3 * stride, (Vec)_mm512_unpackhi_pd(b, d));
}
#else
INLINE void store_columns(const float* const* row, int first, float* y, int stride) {
#pragma GCC unroll 4
    for (int i = 0; i < VL; i += 4) {
        Quad m[4];
        for (int j = 0; j < 4; ++j) m[j] = *reinterpret_cast<const Quad*>(row[i + j] + first);
        transpose(m);
        for (int j = 0; j < 4; ++j) *reinterpret_cast<Quad*>(y + j * stride + i) = m[j];
    }
}
#endif

}  // namespace soma
