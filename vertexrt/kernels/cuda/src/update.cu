// The kernels at the end of a step, as the batched engine launches them; `rules.py` adds those of
// each update rule. And one that copies results.
#include "update.cuh"

#define FIRST_PIECE ((long long)blockIdx.x * WARPS)

VRT_KERNEL(sum_squares_kernel, Store, 256) { sum_squares(a, FIRST_PIECE); }
// Set gradients whose size is above s[0] to it; refuse the step where one is not finite.
VRT_KERNEL(clamp_kernel, Store, 256) {
    const long long number = FIRST_PIECE + threadIdx.x / 32;
    if (number >= a.pieces) return;
    const real most = real(a.s[0]);
    bool finite = true;
    over_piece<1>(a, number, [&](long long at, auto lanes) {
        constexpr int W = decltype(lanes)::W;
        Vec<W> g = load<W>(a.gradients + at);
        VRT_LANES {
            finite &= g.v[c] - g.v[c] == real(0);
            g.v[c] = g.v[c] > most ? most : g.v[c] < -most ? -most : g.v[c];
        }
        store<W>(a.gradients + at, g);
    });
    if (!finite) a.found->refused = 1.0;
}
VRT_KERNEL(finish_step_kernel, Finish, 1024) { finish_step<1024>(a); }

// The loss of a pass that is no step: `to` gets the sum of losses times a scale.
struct SummedLoss {
    real* to;
    const real* loss;
    const real* weight;  // null: each row counts once
    long long rows;
    double scale;
};
VRT_KERNEL(sum_loss_kernel, SummedLoss, 1024) {
    const double loss = sum_losses<1024>(a.loss, a.weight, a.rows);
    if (threadIdx.x == 0) *a.to = real(loss * a.scale);
}

// Rows of a tensor that are wanted: `count` elements, `size` of a row.
struct TakenRows {
    real* to;
    const real* from;
    const int* rows;
    long long count, size;
};
VRT_KERNEL(take_rows_kernel, TakenRows, 256) {
    const long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i < a.count) a.to[i] = a.from[a.rows[i / a.size] * a.size + i % a.size];
}

// What a step of several processes does with gradients before the update.

// Packed gradients: the dense part in pieces, then rows of tables, a warp for each. Where `from`
// is the store and `to` is packed, they are packed; the other way round, they go back.
struct Packing {
    const real* from;
    real* to;
    const long long* row_from;
    const long long* row_to;
    const int* row_width;
    long long dense, dense_pieces, pieces;
};

VRT_KERNEL(copy_rows_kernel, Packing, 256) {
    const long long number = FIRST_PIECE + threadIdx.x / 32;
    if (number >= a.pieces) return;
    long long from = number * PIECE, to = from;
    int width = a.dense - from < PIECE ? (int)(a.dense - from) : PIECE;
    if (number >= a.dense_pieces) {
        const long long row = number - a.dense_pieces;
        from = a.row_from[row];
        to = a.row_to[row];
        width = a.row_width[row];
    }
    for (int i = threadIdx.x % 32; i < width; i += 32) a.to[to + i] = a.from[from + i];
}

// add_kernel: y[i] += x[i]. sample_kernel: y[i] = x[i * stride].
struct Strided {
    real* y;
    const real* x;
    long long count, stride;
};

VRT_KERNEL(add_kernel, Strided, 256) {
    const long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i < a.count) a.y[i] += a.x[i];
}

VRT_KERNEL(sample_kernel, Strided, 256) {
    const long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i < a.count) a.y[i] = a.x[i * a.stride];
}
