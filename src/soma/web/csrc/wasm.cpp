// The inference kernel as WebAssembly: infer.cpp unchanged, and the random numbers of `soma sample`.
//
// Nothing is caught (-fignore-exceptions): what would throw, for want of memory, stops the kernel, and the page reports it.
// A page's kernel has one thread.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define __aarch64__ 1  // simd.h takes its multiply-add from our arm_neon.h
#include "../../forward/csrc/simd.h"
#undef __aarch64__

#include "../../forward/csrc/probes.h"

namespace std {
struct thread {  // the standard library for WebAssembly has none, and infer.cpp starts none for requests of one thread
    template <class Work>
    explicit thread(Work) { abort(); }
    void join() {}
};
}  // namespace std

#include "../../inference/csrc/infer.cpp"

extern "C" void* __cxa_allocate_exception(size_t) noexcept { std::abort(); }
extern "C" void __cxa_throw(void*, void*, void*) { std::abort(); }

EXPORT void* soma_web_allocate(size_t bytes) { return std::malloc(bytes); }

EXPORT void soma_web_free(void* memory) { std::free(memory); }

// Return the number in [0, 1) that soma.numerics.rng.Stream.uniform(1, update=position) draws for a key.
EXPORT double soma_web_uniform(uint32_t key_low, uint32_t key_high, uint32_t position) {
    const soma::Philox drawn = soma::philox({{0, 0, position, 0}}, uint64_t{key_high} << 32 | key_low);
    return static_cast<double>(uint64_t{drawn.word[0]} << 21 | drawn.word[1] >> 11) * 0x1p-53;
}
