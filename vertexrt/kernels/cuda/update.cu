// The kernels at the end of a step, as the batched engine launches them.
#include "update.cuh"

#define FIRST_PIECE ((long long)blockIdx.x * WARPS)

VRT_KERNEL(sum_squares_kernel, Store, 256) { sum_squares(a, FIRST_PIECE); }
VRT_KERNEL(finish_step_kernel, Finish, 1024) { finish_step<1024>(a); }
VRT_KERNEL(update_sgd, Store, 256) { update<Sgd>(a, FIRST_PIECE); }
VRT_KERNEL(update_momentum, Store, 256) { update<Momentum>(a, FIRST_PIECE); }
VRT_KERNEL(update_adagrad, Store, 256) { update<Adagrad>(a, FIRST_PIECE); }
VRT_KERNEL(update_adam, Store, 256) { update<Adam>(a, FIRST_PIECE); }
