// The end of a step: the loss, the norm of the gradients, and the kernels that update all
// parameters and clear their gradients. All decisions are made on the device.
#pragma once
#include "row_ops.cuh"
#include "structs.cuh"

constexpr int PIECE = 1024, WARPS = 8, WIDTH = 16 / sizeof(real);

// Sum over all threads of a block, in a fixed order; thread 0 gets it.
__device__ __forceinline__ double block_sum(double x, int threads) {
    VRT_PART(double, part, 32);
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    double total = 0;
    for (int warp = 0; warp < threads / 32; ++warp) total += part[warp];
    return total;
}

template <int N>
struct Lanes {
    static constexpr int W = N;
};

// Where a piece begins in the store, and its elements.
struct Piece {
    long long start;
    int width;
};
template <class Of>
__device__ __forceinline__ Piece piece_of(const Of& a, long long number) {
    const long long row = number - a.dense_pieces, start = number * PIECE;
    if (row >= 0) return {a.row_start[row], a.row_width[row]};
    return {start, a.dense - start < PIECE ? (int)(a.dense - start) : PIECE};
}

// Call `each` for the widest accesses that a piece allows, whose elements are also from `at` on.
template <class Each>
__device__ __forceinline__ void by_width(const Piece& piece, long long at, Each each) {
    if (piece.start % WIDTH == 0 && at % WIDTH == 0 && piece.width % WIDTH == 0)
        each(Lanes<WIDTH>());
    else
        each(Lanes<1>());
}

// Call `use` for `width` elements of a warp, W at a time, with what `read` has returned for them:
// AT_ONCE of these are under way at once. What lies beyond the end reads the first again.
template <int AT_ONCE, int W, class Read, class Use>
__device__ __forceinline__ void read_ahead(int width, Read read, Use use) {
    constexpr int STEP = 32 * W;
    for (int first = threadIdx.x % 32 * W; first < width; first += AT_ONCE * STEP) {
        decltype(read(0)) x[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            x[k] = read(first + k * STEP < width ? first + k * STEP : first);
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            if (first + k * STEP < width) use(first + k * STEP, x[k]);
        }
    }
}

// Call `each` for the elements of the warp's piece, W at a time; `number` is the number of the
// piece. Each call waits for memory: AT_ONCE are under way at once, where they store nothing.
template <int AT_ONCE, class Each>
__device__ __forceinline__ void over_piece(const Store& a, long long number, Each each) {
    const Piece piece = piece_of(a, number);
    const long long start = piece.start;
    const int lane = threadIdx.x % 32, width = piece.width;
    if (start % WIDTH == 0 && width % WIDTH == 0) {
#pragma unroll AT_ONCE
        for (int i = lane * WIDTH; i < width; i += 32 * WIDTH) each(start + i, Lanes<WIDTH>());
    } else {
        for (int i = lane; i < width; i += 32) each(start + i, Lanes<1>());
    }
}

// Sum the squares of the gradients of eight pieces, a warp each, from piece `first` on.
__device__ __forceinline__ void sum_squares(const Store& a, long long first) {
    const long long number = first + threadIdx.x / 32;
    if (number >= a.pieces) return;
    double sum = 0;
    over_piece<4>(a, number, [&](long long at, auto lanes) {
        constexpr int W = decltype(lanes)::W;
        const Vec<W> g = load<W>(a.gradients + at);
        VRT_LANES sum += double(g.v[c]) * double(g.v[c]);
    });
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) a.squares[number] = sum;
}

// Sum losses with all THREADS of a block, each as often as its weight says; null: once.
template <int THREADS>
__device__ __forceinline__ double sum_losses(const real* losses, const real* weight,
                                             long long rows) {
    double sum = 0;
    for (long long i = threadIdx.x; i < rows; i += THREADS) {
        sum += double(losses[i]) * (weight ? double(weight[i]) : 1.0);
    }
    return block_sum(sum, THREADS);
}

// Compute the loss and the norm with all THREADS of a block, and decide whether the step counts.
template <int THREADS>
__device__ __forceinline__ void finish_step(const Finish& a) {
    double squares = 0;
    const double loss = sum_losses<THREADS>(a.loss, a.weight, a.rows) * a.loss_scale;
    for (long long i = threadIdx.x; i < a.pieces; i += THREADS) squares += a.squares[i];
    squares = block_sum(squares, THREADS);
    if (threadIdx.x != 0) return;
    const double norm = sqrt(squares);
    a.found->loss = loss;
    a.found->norm = norm;
    a.found->scale = a.clip_norm > 0 && norm > a.clip_norm ? a.clip_norm / norm : 1.0;
    if (!(loss - loss == 0.0) || !(norm - norm == 0.0)) a.found->refused = 1.0;
}

// Values and state of W elements. A rule (`step_end.py` writes a struct for each) has `SLOTS` of
// state, and `step`, which moves one element, given its gradient.
template <class Rule, int W>
struct Updated {
    Vec<W> p, state[Rule::SLOTS + 1];
};

// The gradients of W elements, and what they had before.
template <class Rule, int W>
struct Gathered {
    Vec<W> g;
    Updated<Rule, W> before;
};

// Values and state as they are in memory.
template <class Rule, int W>
__device__ __forceinline__ Updated<Rule, W> before_update(const Store& a, long long at) {
    Updated<Rule, W> x;
    x.p = load<W>(a.values + at);
#pragma unroll
    for (int k = 0; k < Rule::SLOTS; ++k) x.state[k] = load<W>(a.moments + k * a.total + at);
    return x;
}

// The result of a rule for W elements `x`, given their gradients.
template <class Rule, int W>
__device__ __forceinline__ Updated<Rule, W> updated(const Store& a, const Vec<W>& g, real scale,
                                                    Updated<Rule, W> x) {
    const real decay = real(a.s[0]), shrink = real(a.s[1]);
    VRT_LANES {
        real state[Rule::SLOTS + 1];
#pragma unroll
        for (int k = 0; k < Rule::SLOTS; ++k) state[k] = x.state[k].v[c];
        real value = shrink * x.p.v[c];
        Rule::step(value, scale * g.v[c] + decay * x.p.v[c], state, a.s);
        x.p.v[c] = value;
#pragma unroll
        for (int k = 0; k < Rule::SLOTS; ++k) x.state[k].v[c] = state[k];
    }
    return x;
}

// Tell whether what a rule makes of W elements is finite.
template <class Rule, int W>
__device__ __forceinline__ bool updated_is_finite(const Store& a, const Vec<W>& g, real scale,
                                                  const Updated<Rule, W>& before) {
    const auto x = updated<Rule>(a, g, scale, before);
    bool finite = true;
    VRT_LANES {
        finite &= x.p.v[c] - x.p.v[c] == real(0);
#pragma unroll
        for (int k = 0; k < Rule::SLOTS; ++k)
            finite &= x.state[k].v[c] - x.state[k].v[c] == real(0);
    }
    return finite;
}

// Check what a rule would write for eight pieces, a warp each, from piece `first` on, and refuse
// the step if a number is not finite. Nothing is updated before all pieces have been checked.
template <class Rule>
__device__ __forceinline__ void check(const Store& a, long long first) {
    const long long number = first + threadIdx.x / 32;
    if (number >= a.pieces) return;
    const real scale = real(a.found->scale);
    bool finite = true;
    over_piece<4>(a, number, [&](long long at, auto lanes) {
        constexpr int W = decltype(lanes)::W;
        const Vec<W> g = load<W>(a.gradients + at);
        finite &= updated_is_finite<Rule>(a, g, scale, before_update<Rule, W>(a, at));
    });
    if (!finite) a.found->refused = 1.0;
}

// Clear the gradients `g` of W elements, and unless the step is refused, store what a rule makes of
// `before`.
template <class Rule, int W>
__device__ __forceinline__ void write_update(const Store& a, long long at, const Vec<W>& g,
                                             real scale, bool refused,
                                             const Updated<Rule, W>& before) {
    Vec<W> zero;
    VRT_LANES zero.v[c] = 0;
    store<W>(a.gradients + at, zero);
    if (refused) return;
    const Updated<Rule, W> x = updated<Rule>(a, g, scale, before);
    store<W>(a.values + at, x.p);
#pragma unroll
    for (int k = 0; k < Rule::SLOTS; ++k) store<W>(a.moments + k * a.total + at, x.state[k]);
}

// Tell the host what was found: all has been decided when an update begins.
__device__ __forceinline__ void tell_host(const Store& a) {
    if (blockIdx.x == 0 && threadIdx.x == 0 && a.told != nullptr) *a.told = *a.found;
}

// Apply a rule to eight pieces, a warp each, from piece `first` on, and clear their gradients.
template <class Rule>
__device__ __forceinline__ void update(const Store& a, long long first) {
    tell_host(a);
    const long long number = first + threadIdx.x / 32;
    if (number >= a.pieces) return;
    const bool refused = a.found->refused != 0.0;
    const real scale = real(a.found->scale);
    const Piece piece = piece_of(a, number);
    by_width(piece, piece.start, [&](auto lanes) {
        constexpr int W = decltype(lanes)::W;
        auto read = [&](int i) {
            const long long at = piece.start + i;
            return Gathered<Rule, W>{load<W>(a.gradients + at), before_update<Rule, W>(a, at)};
        };
        read_ahead<2, W>(piece.width, read, [&](int i, const Gathered<Rule, W>& x) {
            write_update<Rule>(a, piece.start + i, x.g, scale, refused, x.before);
        });
    });
}
