// The kernels at the end of a step, as the batched engine launches them; `step_end.py` adds those
// of each update rule. And one that copies results.
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

// The losses of rows, whose sum counts times a scale.
template <int THREADS>
__device__ __forceinline__ double scaled_loss(const Losses& a) {
    return sum_losses<THREADS>(a.loss, a.weight, a.rows) * a.scale;
}

// The loss of a pass that does not update.
VRT_KERNEL(sum_loss_kernel, SummedLoss, 1024) {
    const double loss = scaled_loss<1024>(a.of);
    if (threadIdx.x == 0) *a.to = real(loss);
}

// Rows of some tensors that are wanted.
struct TakenTensors {
    TakenRows of[4];  // as `MOST_TAKEN` says; of none there are 0 elements
};
VRT_KERNEL(take_rows_kernel, TakenTensors, 256) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const TakenRows& t = a.of[k];
        const long long i = ((long long)blockIdx.x - t.first_block) * 256 + threadIdx.x;
        if (i < 0 || i >= t.count) continue;
        t.to[i] = t.tensor[t.rows[i / t.size] * t.size + i % t.size];
    }
}

// What a step of several processes does with gradients before the update: a share is packed, flat
// arrays are exchanged and added up, and what is left of the sum is joined in the store.

// What a process tells the others: whether a wait ran out in its launches, a signal, numbers that
// all must have alike, and after them the losses of its shares.
enum { GAVE_UP, SIGNAL, STRUCTURE, INDEX, SEED, PARAMETERS, LOSSES };
static_assert(sizeof(Telling::given) == sizeof(double) * (PARAMETERS - SIGNAL), "from SIGNAL on");

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

__device__ __forceinline__ void tell(const Telling& a) {
    double sum = 0;
#pragma unroll 8
    for (long long i = threadIdx.x; i < a.count; i += 256) {
        sum += double(mixed(a.values[i * a.stride], i));
    }
    sum = block_sum(sum, 256);
    if (threadIdx.x != 0) return;
    a.to[GAVE_UP] = *a.code;
    for (int k = SIGNAL; k < PARAMETERS; ++k) a.to[k] = a.given[k - SIGNAL];
    a.to[PARAMETERS] = sum;
}

// Gradients of a share as a flat array: the dense part in pieces, then rows of tables, a warp for
// each. The first two blocks tell, and sum the loss of the share.
VRT_KERNEL(pack_kernel, Packing, 256) {
    if (blockIdx.x == 0) return tell(a.telling);
    if (blockIdx.x == 1) {
        const double loss = scaled_loss<256>(a.losses);
        if (threadIdx.x == 0) *a.loss = loss;
        return;
    }
    const long long number = (long long)(blockIdx.x - 2) * WARPS + threadIdx.x / 32;
    if (number >= a.pieces) return;
    const Piece piece = piece_of(a, number);
    const long long row = number - a.dense_pieces, to = row < 0 ? piece.start : a.row_at[row];
    by_width(piece, to, [&](auto lanes) {
        constexpr int W = decltype(lanes)::W;
        auto read = [&](int i) {
            Vec<W> x;
            VRT_LANES x.v[c] = 0;
            return a.gradients ? load<W>(a.gradients + piece.start + i) : x;
        };
        auto write = [&](int i, const Vec<W>& x) { store<W>(a.to + to + i, x); };
        read_ahead<4, W>(piece.width, read, write);
    });
}

// to[i] = left[i] + right[i].
VRT_KERNEL(add_kernel, Sum, 256) {
    const long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i < a.count) a.to[i] = a.right ? a.left[i] + a.right[i] : a.left[i];
}

// Refuse the step, in all processes alike, where they do not agree, where one has not computed its
// part, or where a loss is not finite; and in this one where an exchange was ended before it was
// whole. The host says what it was.
__device__ __forceinline__ void agree(const Joining& a) {
    bool agreed = !a.stopped || *reinterpret_cast<const volatile long long*>(a.stopped) == 0;
    for (long long i = threadIdx.x; i < a.processes * a.numbers; i += 256) {
        const long long number = i % a.numbers;
        const double x = a.told[i];
        a.told_to[i] = x;
        if (number == GAVE_UP) agreed &= x == 0.0;
        if (number >= STRUCTURE && number <= PARAMETERS) agreed &= x == a.told[number];
        if (number >= LOSSES) agreed &= x - x == 0.0;
    }
    if (!agreed) a.store.found->refused = 1.0;
    if (threadIdx.x != 0 || !a.checks) return;
    a.store.found->loss = a.store.found->norm = 0.0;
    a.store.found->scale = 1.0;
}

template <class Rule>
__device__ __forceinline__ void join(const Joining& a) {
    if (blockIdx.x == 0) return agree(a);
    const long long number = (long long)(blockIdx.x - 1) * WARPS + threadIdx.x / 32;
    if (number >= a.store.pieces) return;
    const Piece piece = piece_of(a.store, number);
    const long long row = number - a.store.dense_pieces;
    const long long at = row < 0 ? piece.start : a.row_at[row];
    double sum = 0;
    bool finite = true;
    by_width(piece, at, [&](auto lanes) {
        constexpr int W = decltype(lanes)::W;
        auto read = [&](int i) {
            Gathered<Rule, W> x;
            x.g = load<W>(a.left + at + i);
            if (a.right) {
                const Vec<W> more = load<W>(a.right + at + i);
                VRT_LANES x.g.v[c] += more.v[c];
            }
            if (a.checks) x.before = before_update<Rule, W>(a.store, piece.start + i);
            return x;
        };
        read_ahead<4, W>(piece.width, read, [&](int i, const Gathered<Rule, W>& x) {
            store<W>(a.store.gradients + piece.start + i, x.g);
            if (a.squares) VRT_LANES sum += double(x.g.v[c]) * double(x.g.v[c]);
            // Nothing is clipped where the update is checked here.
            if (a.checks) finite &= updated_is_finite<Rule>(a.store, x.g, real(1), x.before);
        });
    });
    if (!finite) a.store.found->refused = 1.0;
    if (!a.squares) return;
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) a.store.squares[number] = sum;
}
