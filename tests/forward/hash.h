// A hash of results, and numbers to compute them from, for the programs here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

uint64_t hash = 14695981039346656037u;  // FNV-1a

template <class T>
void add(const std::vector<T>& values) {
    const unsigned char* bytes = reinterpret_cast<const unsigned char*>(values.data());
    for (size_t i = 0; i < values.size() * sizeof(T); ++i) hash = (hash ^ bytes[i]) * 1099511628211u;
}

uint32_t state = 1;
float uniform() { return ((state = state * 1664525u + 1013904223u) >> 8) / 16777216.0f; }

}  // namespace
