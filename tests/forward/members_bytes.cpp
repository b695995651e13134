// Everything that the kernel of EGGROLL's members computes for some small problems, as one hash a line: for processors
// without Python.
#include <cstdio>

#include "members.cpp"
#include "hash.h"

namespace {

void problem(int width, bool clip) {
    constexpr int L = 2, P = 5, T = 11, V = 256;
    const int d = width;
    std::vector<soma::Place> places;
    int64_t M = 0, K = 0;
    const auto lay_out = [&](int rows, int columns) {  // columns = 0 for a vector
        places.push_back({M, K, K + rows});
        M += int64_t{rows} * (columns ? columns : 1), K += rows + (columns ? columns : rows);
    };
    lay_out(V, d);
    for (int l = 0; l < L; ++l) {
        for (int matrix : {0, 1, 1, 0, 1, 1, 0, 0}) lay_out(d, matrix * d);
        lay_out(4 * d, d), lay_out(d, 4 * d);
    }
    lay_out(d, 0), lay_out(V, d);
    std::vector<float> theta(M), before(P * 2 * L * d), after(P * 2 * L * d);
    for (std::vector<float>* values : {&theta, &before})
        for (float& x : *values) x = uniform() * 4 - 2;
    std::vector<uint8_t> tokens(P * (T + 1));
    for (uint8_t& x : tokens) x = static_cast<uint8_t>(uniform() * 7);
    std::vector<double> noise(P * K), losses(P * 2), bytes(P * 2 * T);
    soma_factors(77, 5, 3, P, K, noise.data());
    add(noise);

    soma::Problem p{};
    p.width = d, p.depth = L, p.pairs = P, p.time = T, p.separator = 0, p.clip = clip, p.factors = K;
    p.places = places.data(), p.theta = theta.data(), p.noise = noise.data(), p.tokens = tokens.data();
    p.before = before.data(), p.sigma = 0.0625f;
    p.losses = losses.data(), p.token_losses = bytes.data(), p.after = after.data();
    soma_members(&p);
    add(losses);
    add(bytes);
    add(after);
    std::printf("%d %d %016llx\n", width, clip, static_cast<unsigned long long>(hash));
}

}  // namespace

int main() {
    for (int width : {5, 16, 29})
        for (bool clip : {true, false}) problem(width, clip);
}
