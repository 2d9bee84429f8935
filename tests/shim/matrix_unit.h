// The product of a matrix unit, as `mma.m16n8k8` of TF32 has it: 16 x 8 x 8.
#pragma once
#include "shim.h"

namespace shim {
namespace {

// What a lane brings to a product, and its part of the result.
struct Fragments {
    float a[4], b[2], sum[4];
};

// A number as the units read it, and a sum as they compute it: both are truncated.
float as_tf32(float x) { return from_bits<float>(to_bits(x) & 0xffffe000u); }
float cut_off(double sum) {
    const float nearest = (float)sum;
    return fabs((double)nearest) > fabs(sum) ? nextafterf(nearest, 0.0f) : nearest;
}

// Compute the product of a warp; lanes that have ended are null, and bring what is not a number.
void multiply_fragments(Fragments* const (&of)[32]) {
    double a[16][8], b[8][8];
    for (unsigned lane = 0; lane < 32; ++lane) {
        const Fragments* const f = of[lane];
        const unsigned g = lane / 4, t = lane % 4;
        for (unsigned k = 0; k < 4; ++k) {
            a[g + k % 2 * 8][t + k / 2 * 4] = f ? as_tf32(f->a[k]) : NAN;
        }
        for (unsigned k = 0; k < 2; ++k) b[t + k * 4][g] = f ? as_tf32(f->b[k]) : NAN;
    }
    for (unsigned lane = 0; lane < 32; ++lane) {
        for (unsigned e = 0; of[lane] && e < 4; ++e) {
            const unsigned row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
            double sum = of[lane]->sum[e];
            for (unsigned k = 0; k < 8; ++k) sum += a[row][k] * b[k][column];
            of[lane]->sum[e] = cut_off(sum);
        }
    }
}

}  // namespace
}  // namespace shim
