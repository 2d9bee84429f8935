// Round floats to bf16, ties to even: operands of products in that precision. The copies in float32
// stay what is trained.
#include "row_ops.cuh"

struct Round {
    const float* from;
    unsigned short* to;
    long long count;
};

VRT_KERNEL(round_to_bf16, Round, 256) {
    for (int c = 0; c < 4; ++c) {
        const long long i = blockIdx.x * 1024ll + c * 256 + threadIdx.x;
        if (i >= a.count) return;
        const unsigned bits = __float_as_uint(a.from[i]);
        const bool number = (bits & 0x7fffffffu) <= 0x7f800000u;
        const unsigned rounded = bits + 0x7fffu + (bits >> 16 & 1u);
        a.to[i] = (unsigned short)((number ? rounded : bits | 0x400000u) >> 16);
    }
}
