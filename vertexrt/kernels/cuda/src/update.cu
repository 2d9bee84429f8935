// The kernels at the end of a step, as the batched engine launches them; `rules.py` adds those of
// each update rule.
#include "update.cuh"

#define FIRST_PIECE ((long long)blockIdx.x * WARPS)

VRT_KERNEL(sum_squares_kernel, Store, 256) { sum_squares(a, FIRST_PIECE); }
VRT_KERNEL(finish_step_kernel, Finish, 1024) { finish_step<1024>(a); }
