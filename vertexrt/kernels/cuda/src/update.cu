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

// The loss of a pass that does not update: `to` and `total` get the sum of losses times a scale.
struct SummedLoss {
    real* to;       // or null
    double* total;  // or null
    const real* loss;
    const real* weight;  // null: each row counts once
    long long rows;
    double scale;
};
VRT_KERNEL(sum_loss_kernel, SummedLoss, 1024) {
    const double loss = sum_losses<1024>(a.loss, a.weight, a.rows);
    if (threadIdx.x != 0) return;
    if (a.to) *a.to = real(loss * a.scale);
    if (a.total) *a.total = loss * a.scale;
}

// Rows of a tensor that are wanted: `count` elements, `size` of a row, from a block on. `order`
// says which of `rows` comes where, if it is not null; a number that is none of them has no row.
struct TakenRows {
    real* to;
    const real* from;
    const int* rows;
    const long long* order;
    long long count, size, first_block;
};
struct TakenTensors {
    TakenRows of[4];  // as `MOST_TAKEN` says; of none there are 0 elements
};
VRT_KERNEL(take_rows_kernel, TakenTensors, 256) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const TakenRows& t = a.of[k];
        const long long i = ((long long)blockIdx.x - t.first_block) * 256 + threadIdx.x;
        if (i < 0 || i >= t.count) continue;
        const long long place = t.order != nullptr ? t.order[i / t.size] : i / t.size;
        const bool has = place >= 0 && place < t.count / t.size;
        const real none = real(INFINITY) - real(INFINITY);
        t.to[i] = has ? t.from[t.rows[place] * t.size + i % t.size] : none;
    }
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

// y[i] += x[i].
struct Sum {
    real* y;
    const real* x;
    long long count;
};

VRT_KERNEL(add_kernel, Sum, 256) {
    const long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i < a.count) a.y[i] += a.x[i];
}

// What a process tells the others: whether a wait ran out in its launches, a signal, numbers that
// all must have alike, and after them the losses of its shares, which `sum_loss_kernel` has left.
enum { GAVE_UP, SIGNAL, STRUCTURE, INDEX, SEED, PARAMETERS, LOSSES };
struct Telling {
    double* to;
    const double* code;  // of the record that launches leave
    const real* values;  // each `stride`-th is looked at
    long long count, stride;
    double given[PARAMETERS - SIGNAL];  // from SIGNAL on
};

// 32 bits of a number and of its place. A sum of 2^20 of them has no rounding in a double.
__device__ __forceinline__ unsigned mixed(real value, long long place) {
    unsigned x = (unsigned)place * 0x9E3779B1u;
    const unsigned* words = reinterpret_cast<const unsigned*>(&value);
#pragma unroll
    for (int k = 0; k < (int)(sizeof(real) / 4); ++k) {
        x = (x ^ words[k]) * 0x85EBCA77u;
        x ^= x >> 15;
    }
    return x * 0xC2B2AE3Du;
}

VRT_KERNEL(tell_kernel, Telling, 1024) {
    double sum = 0;
#pragma unroll 4
    for (long long i = threadIdx.x; i < a.count; i += 1024) {
        sum += double(mixed(a.values[i * a.stride], i));
    }
    sum = block_sum(sum, 1024);
    if (threadIdx.x != 0) return;
    a.to[GAVE_UP] = *a.code;
    for (int k = SIGNAL; k < PARAMETERS; ++k) a.to[k] = a.given[k - SIGNAL];
    a.to[PARAMETERS] = sum;
}

// Refuse the step, in all processes alike, where they do not agree, where one has not computed its
// part, or where a loss is not finite; and in this one where an exchange was ended before it was
// whole. The host says what it was.
struct Agreeing {
    Found* found;
    const double* told;        // [processes, numbers]
    const long long* stopped;  // of the host, or null: an exchange was ended
    long long processes, numbers;
};

VRT_KERNEL(agree_kernel, Agreeing, 256) {
    bool agreed = !a.stopped || *reinterpret_cast<const volatile long long*>(a.stopped) == 0;
    for (long long i = threadIdx.x; i < a.processes * a.numbers; i += 256) {
        const long long number = i % a.numbers;
        const double x = a.told[i];
        if (number == GAVE_UP) agreed &= x == 0.0;
        if (number >= STRUCTURE && number <= PARAMETERS) agreed &= x == a.told[number];
        if (number >= LOSSES) agreed &= x - x == 0.0;
    }
    if (!agreed) a.found->refused = 1.0;
}
