// Products of many rows, as the batched engine launches them where a device has warp groups.
#define VRT_BLOCKS 1
#include "warp_group_matmul.cuh"

static_assert(sizeof(MatmulMemory) == WIDE_SHARED_BYTES && MATMUL_DOWN == WIDE_TILE &&
                  MATMUL_ACROSS == WIDE_TILE && DEPTH == WIDE_DEPTH &&
                  SUMS_EACH * MATMUL_THREADS == WIDE_TILE * WIDE_TILE,
              "as the host has it");

// y = x w^T, y = x w, and g += d^T x.
VRT_KERNEL(wide_plain, WideProduct, MATMUL_THREADS) { multiply<false, false>(a); }
VRT_KERNEL(wide_transposed, WideProduct, MATMUL_THREADS) { multiply<false, true>(a); }
VRT_KERNEL(wide_outer, WideProduct, MATMUL_THREADS) { multiply<true, true>(a); }
