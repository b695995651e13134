// Everything that the kernel computes for some small problems, as one hash a line: for processors without Python.
#include <cstdio>

#include "engine.cpp"
#include "hash.h"

namespace {

void problem(int width) {
    constexpr int D = 2, H = 20, E = 2, B = 5, T = 11, J = 3, S = 2, V = 256;
    const int64_t M = 16 * D * width * width + (2 * D + 1) * width + (width == H ? 0 : 2 * H * width);
    std::vector<float> theta(E * M), head(E * V * H), gradient(E * V * H), normals(E * J * M);
    for (std::vector<float>* values : {&theta, &head, &normals})
        for (float& x : *values) x = uniform() - 0.5f;
    std::vector<uint8_t> tokens(E * B * (T + 1));
    for (uint8_t& x : tokens) x = static_cast<uint8_t>(uniform() * 255);
    const std::vector<uint32_t> experts{3, 4}, directions{0, 1, 2}, kept((M + 63) / 64 * 2, 0x10u);
    const std::vector<float> steps{1e-2f, -1e-2f, 2e-2f, -2e-2f};
    const std::vector<double> coefficients{0.1, 0.2, -0.3, 0.4, 0.5, 0.6};
    std::vector<double> sequences(E * J * S * B), bytes(E * B * T), combined(E * M);

    soma::Problem p{};
    p.width = width, p.depth = D, p.embedding = H, p.experts = E, p.batch = B, p.time = T, p.threads = 1, p.size = M;
    p.theta = theta.data(), p.theta_stride = M, p.head = head.data(), p.head_stride = V * H, p.tokens = tokens.data();
    soma_head_gradient(&p, gradient.data());
    add(gradient);
    soma::Problem plain = p;
    plain.token_losses = bytes.data();
    soma_forward(&plain);
    add(bytes);
    p.key = 77, p.update = 5, p.directions = J, p.signs = S, p.steps = steps.data(), p.kept = kept.data();
    p.expert_ids = experts.data(), p.direction_ids = directions.data(), p.sequence_losses = sequences.data();
    soma_forward(&p);
    add(sequences);
    soma_combine(&p, coefficients.data(), combined.data());
    add(combined);
    p.normals = normals.data();
    soma_forward(&p);
    add(sequences);
    std::printf("%d %016llx\n", width, static_cast<unsigned long long>(hash));
}

}  // namespace

int main() {
    for (int width : {8, 15, 20, 33}) problem(width);
}
