// One kernel for a whole step. Its processors (blocks, one a multiprocessor) follow scripts; weights
// that the path multiplies by stay in their registers while a side of the path runs.
//
// - Steps beside the path are launches of the batched engine, whose blocks take turns on all
//   processors. They are ordered by barriers over the grid.
// - On the path each *group* of processors has its own script, the same for all its members: an
//   instruction is a segment on a tile of rows, of which each member makes its units.
// - Every wait is bounded by a clock. Who gives up leaves a record, everybody ends, and nothing is
//   updated.
//
// Sources: VPPS (MICRO 2018), sections III-B and III-C; weights in registers, Persistent RNN (ICML
// 2016); rows of a tile by matrix units with three TF32 products (Markidis et al. 2018).
#pragma once
#define VRT_PERSISTENT
#include "vertexrt.cuh"

// What lies at the start of a processor's dynamic shared memory.
struct Turn {
    uint3 block, grid;
    int alive;
    int pad_;
};
constexpr int TURN_AT = 0, PART_AT = 64, INSTRUCTION_AT = 384, ARGS_AT = 512,
              INDICES_AT = 1280, COMMON_AT = 5376, JOB_AT = 9472, SCRATCH_AT = 13568;
constexpr int NEAR_INSTRUCTIONS = 64;  // of the script of all processors, in shared memory

__device__ __forceinline__ unsigned char* shared_memory() {
    VRT_SHARED(unsigned char, all);
    return all;
}
__device__ __forceinline__ Turn& my_turn() { return *reinterpret_cast<Turn*>(shared_memory() + TURN_AT); }

#define VRT_BLOCK (my_turn().block)
#define VRT_GRID (my_turn().grid)
#define VRT_SCRATCH(type, name, count) \
    type* const name = reinterpret_cast<type*>(shared_memory() + SCRATCH_AT)
#define VRT_PART(type, name, count) type* const name = reinterpret_cast<type*>(shared_memory() + PART_AT)

#include "product.cuh"
#include "update.cuh"

constexpr int PROCESSOR = 256, WARPS_EACH = PROCESSOR / 32;  // threads of a processor

// An instruction, as `kernels/cuda/orders.py` writes it. Beside the path `before` counts the blocks of
// its round in front of it, `first` and `chunks` are those of `Args`; on the path there are `parents`
// edges to parents, from `first_parent` on.
struct Instruction {
    int op, n, lo, at, m, elo, first, chunks, across, down, wait, temporary, before, parents,
        first_parent, pad_;
};
constexpr int INSTRUCTION_WORDS = 16;
enum { END, FORWARD, BACKWARD, SQUARES, FINISH, UPDATE, FIRST_OP };

// What a step found, and who gave up waiting: code, processor, instruction, what the counter had.
struct Record {
    Found found;
    double code, processor, instruction, reached;
};
enum { FINE, GRID_WAIT, GROUP_WAIT };

// The arguments of the kernel; `Job<WORDS>` adds the words.
struct Orders {
    const int* script;   // of all processors
    const int* sections; // [2, groups + 1] instructions of the groups' scripts, forward and backward
    unsigned* counters;  // [2 + groups] zero: of the grid, whether somebody gave up, of the groups
    Record* record;
    long long groups, rule, patience;  // nanoseconds
    unsigned char* spill;              // temporaries that do not fit on chip
    long long spill_bytes;             // of each processor
    long long* stamps;                 // [processors, most_stamps, 4] or null, see `Stamps`
    long long most_stamps, shared_bytes, instructions;  // of the script of all processors
    Store store;
    Finish finish;
};

template <int WORDS>
struct Job {
    Orders o;
    long long w[WORDS];
};

// Reads and writes that order others, and time.
#ifdef __CUDACC_RTC__
__device__ __forceinline__ unsigned load_acquire(const unsigned* at) {
    unsigned x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return x;
}
__device__ __forceinline__ void add_release(unsigned* at, unsigned x) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}
__device__ __forceinline__ long long nanoseconds() {
    long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
__device__ __forceinline__ long long cycles() { return clock64(); }
__device__ __forceinline__ void between_looks() {}
#else
inline unsigned load_acquire(const unsigned* at) { return *at; }
inline void add_release(unsigned* at, unsigned x) { atomicAdd(at, x); }
inline long long nanoseconds() {  // of a clock that goes on when somebody looks at it
    static long long t = 0;
    return t += 1000000;
}
inline long long cycles() { return nanoseconds(); }
inline void between_looks() { __nanosleep(20); }
#endif

// When a processor ran what, if somebody wants to know: for each instruction its number in the script
// and the clock at its start, behind its wait and at its end. The first row is the clock and the time
// in nanoseconds at the start of the kernel, the last one those at its end.
struct Stamps {
    long long* to;
    int left;

    __device__ __forceinline__ Stamps(const Orders& o) : to(nullptr), left(0) {
        if (o.stamps == nullptr || threadIdx.x != 0) return;
        to = o.stamps + blockIdx.x * o.most_stamps * 4;
        left = (int)o.most_stamps - 1;
        both();
    }
    __device__ __forceinline__ void both() {
        if (to == nullptr) return;
        to[0] = -1;
        to[1] = cycles();
        to[2] = nanoseconds();
        to += 4;
    }
    __device__ __forceinline__ void begin(int instruction) {
        if (to == nullptr || left < 2) return;
        to[0] = instruction;
        to[1] = cycles();
    }
    __device__ __forceinline__ void waited() {
        if (to != nullptr && left >= 2) to[2] = cycles();
    }
    __device__ __forceinline__ void end() {
        if (to == nullptr || left < 2) return;
        to[3] = cycles();
        to += 4;
        --left;
    }
};

// Wait until a counter has reached a value; false, when it did not in time or somebody gave up.
__device__ __forceinline__ bool wait_for(const Orders& o, const unsigned* counter, unsigned value, int code,
                                         int instruction) {
    unsigned reached = load_acquire(counter);
    if ((int)(reached - value) >= 0) return true;
    // Who waits for a group gives up first: the others wait for that group's processors.
    const long long limit = code == GROUP_WAIT ? o.patience / 2 : o.patience, start = nanoseconds();
    for (unsigned looks = 1;; ++looks) {
        between_looks();
        reached = load_acquire(counter);
        if ((int)(reached - value) >= 0) return true;
        if (looks % 64 != 0) continue;
        if (load_acquire(o.counters + 1) != 0) return false;
        if (nanoseconds() - start < limit) continue;
        if (atomicCAS(o.counters + 1, 0u, 1u) == 0u) {
            o.record->code = code;
            o.record->processor = blockIdx.x;
            o.record->instruction = instruction;
            o.record->reached = reached;
            o.record->found.refused = 1.0;
        }
        return false;
    }
}

// Meet all members at a counter that each adds one to; false, when somebody did not come.
__device__ __forceinline__ bool meet(const Orders& o, unsigned* counter, unsigned value, int code,
                                     int instruction) {
    __syncthreads();
    if (threadIdx.x == 0) {
        add_release(counter, 1);
        my_turn().alive = wait_for(o, counter, value, code, instruction);
    }
    __syncthreads();
    return my_turn().alive;
}

// The number of the thread, asked for anew: what follows from it is then worked out where it is needed,
// and not once for all instructions, in registers that weights should have.
__device__ __forceinline__ int this_thread() {
#ifdef __CUDACC_RTC__
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
#else
    return (int)threadIdx.x;
#endif
}
__device__ __forceinline__ int this_processor() {
#ifdef __CUDACC_RTC__
    int block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    return block;
#else
    return (int)blockIdx.x;
#endif
}

// --- products with weights that a processor holds

// How ROWS x DEEP elements lie over the threads: WIDE parts of the depth times TALL parts of the rows
// are the warps; of its part a warp has SLABS x BLOCKS fragments of 16 x 16. In a fragment lane 4 g + t
// has columns 4 t to 4 t + 3 of rows g and g + 8: operand A of `mma` with its columns in another
// order, the same for operand B.
constexpr int power_below(int n) { return n < 2 ? 1 : 2 * power_below(n / 2); }
template <int ROWS, int DEEP>
struct Layout {
    static constexpr int PARTS = (DEEP + 15) / 16;
    static constexpr int WIDE = PARTS >= WARPS_EACH ? WARPS_EACH : power_below(PARTS);
    static constexpr int TALL = WARPS_EACH / WIDE;
    static constexpr int SLABS = ((ROWS + 15) / 16 + TALL - 1) / TALL;
    static constexpr int BLOCKS = (PARTS + WIDE - 1) / WIDE;
    static constexpr int PADDED = SLABS * TALL * 16;  // rows
    static constexpr int FLOATS = SLABS * BLOCKS * 8;  // of a lane
};

// A share of a weight in registers.
template <int ROWS, int DEEP>
struct InRegisters : Layout<ROWS, DEEP> {
    using L = Layout<ROWS, DEEP>;
    real w[L::SLABS * L::BLOCKS * 2][4];
    __device__ __forceinline__ void take(unsigned char*) {}
    __device__ __forceinline__ void put(int k, int c, real x) { w[k][c] = x; }
    __device__ __forceinline__ real at(int k, int c) const { return w[k][c]; }
};

// A share of a weight in shared memory, for what registers have no room for.
template <int ROWS, int DEEP>
struct InShared : Layout<ROWS, DEEP> {
    using L = Layout<ROWS, DEEP>;
    static constexpr int BYTES = L::FLOATS * PROCESSOR * sizeof(real);
    Vec<4>* w;
    __device__ __forceinline__ void take(unsigned char* from) { w = reinterpret_cast<Vec<4>*>(from) + threadIdx.x; }
    __device__ __forceinline__ void put(int k, int c, real x) { w[k * PROCESSOR].v[c] = x; }
    __device__ __forceinline__ real at(int k, int c) const { return w[k * PROCESSOR].v[c]; }
};

// Load a share. `row(q)` is the weight's row (its column if TRANSPOSED) that own row q is, or negative;
// `pitch` is the length of the weight's rows.
template <bool TRANSPOSED, int ROWS, int DEEP, class Share, class Row>
__device__ __forceinline__ void hold(Share& share, const real* weight, int pitch, Row row) {
    using L = Layout<ROWS, DEEP>;
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int s = 0; s < L::SLABS; ++s)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int q = (warp / L::WIDE * L::SLABS + s) * 16 + half * 8 + g;
            const int own = q < ROWS ? row(q) : -1;
#pragma unroll
            for (int b = 0; b < L::BLOCKS; ++b) {
                const int column = (warp % L::WIDE * L::BLOCKS + b) * 16 + t * 4;
                const int k = (s * L::BLOCKS + b) * 2 + half;
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    const bool there = own >= 0 && column + c < DEEP;
                    const long long at = TRANSPOSED ? (long long)(column + c) * pitch + own
                                                    : (long long)own * pitch + column + c;
                    share.put(k, c, there ? weight[at] : real(0));
                }
            }
        }
}

// The elements of a row of an operand that a lane needs of a block: four from `column` on.
template <int DEEP, bool ALIGNED>
__device__ __forceinline__ Vec<4> part_of_row(const real* row, int column) {
    Vec<4> x;
    if (ALIGNED && DEEP % 4 == 0) {
        constexpr int FULL = 16 * Layout<1, DEEP>::WIDE;
        if (DEEP % FULL == 0 || column < DEEP) return load<4>(row + column);
#pragma unroll
        for (int c = 0; c < 4; ++c) x.v[c] = 0;
        return x;
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) x.v[c] = column + c < DEEP ? row[column + c] : real(0);
    return x;
}

// Add up, over the four lanes of a row, N sums each (a multiple of 4): lane t ends with a quarter of
// them, from t N / 4 on.
template <int N>
__device__ __forceinline__ void share_sums(real (&sum)[N]) {
    const int t = threadIdx.x % 4;
    const bool upper = t & 2, odd = t & 1;
#pragma unroll
    for (int k = 0; k < N / 2; ++k) {
        const real keep = upper ? sum[k + N / 2] : sum[k], give = upper ? sum[k] : sum[k + N / 2];
        sum[k] = keep + __shfl_xor_sync(0xffffffffu, give, 2);
    }
#pragma unroll
    for (int k = 0; k < N / 4; ++k) {
        const real keep = odd ? sum[k + N / 4] : sum[k], give = odd ? sum[k] : sum[k + N / 4];
        sum[k] = keep + __shfl_xor_sync(0xffffffffu, give, 1);
    }
}

constexpr int TILE_ROWS = 8;  // of a product at a time

// Sums of this warp's part of the depth for up to NB rows: part[row][own row].
template <int NB, bool ALIGNED, int ROWS, int DEEP, class Share, class X>
__device__ __forceinline__ void by_lanes(const Share& share, int first, int count, X x, real* part) {
    using L = Layout<ROWS, DEEP>;
    const int thread = this_thread(), warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
    const int column = warp % L::WIDE * L::BLOCKS * 16 + t * 4;
    constexpr int SUMS = L::SLABS * 2 * NB, PADDED = (SUMS + 3) / 4 * 4;
    real sum[PADDED];
#pragma unroll
    for (int k = 0; k < PADDED; ++k) sum[k] = 0;
    const real* row[NB];
#pragma unroll
    for (int r = 0; r < NB; ++r) row[r] = x(first + (r < count ? r : 0));
#pragma unroll
    for (int b = 0; b < L::BLOCKS; ++b) {
        Vec<4> v[NB];
#pragma unroll
        for (int r = 0; r < NB; ++r) v[r] = part_of_row<DEEP, ALIGNED>(row[r], column + b * 16);
#pragma unroll
        for (int s = 0; s < L::SLABS; ++s)
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int c = 0; c < 4; ++c)
#pragma unroll
                    for (int r = 0; r < NB; ++r) {
                        sum[(r * L::SLABS + s) * 2 + half] +=
                            share.at((s * L::BLOCKS + b) * 2 + half, c) * v[r].v[c];
                    }
    }
    share_sums(sum);
#pragma unroll
    for (int k = 0; k < PADDED / 4; ++k) {
        const int index = t * (PADDED / 4) + k;
        const int r = index / (L::SLABS * 2), s = index / 2 % L::SLABS;
        const int q = (warp / L::WIDE * L::SLABS + s) * 16 + index % 2 * 8 + g;
        if (index < SUMS) part[(warp % L::WIDE * TILE_ROWS + r) * L::PADDED + q] = sum[k];
    }
}

#ifndef VRT_REAL
#define VRT_MATRIX_UNITS 1
// d += a b of a warp: 16 x 8 x 8, operands that TF32 can hold.
__device__ __forceinline__ void matrix_unit(float (&d)[4], const float (&a)[4], float b0, float b1) {
#ifdef __CUDACC_RTC__
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
#else
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int k = 0; k < 8; ++k) {
        const float upper = __shfl_sync(0xffffffffu, k < 4 ? a[0] : a[2], 4 * g + k % 4);
        const float lower = __shfl_sync(0xffffffffu, k < 4 ? a[1] : a[3], 4 * g + k % 4);
        for (int n = 0; n < 2; ++n) {
            const float b = __shfl_sync(0xffffffffu, k < 4 ? b0 : b1, 4 * (2 * t + n) + k % 4);
            d[n] += upper * b;
            d[2 + n] += lower * b;
        }
    }
#endif
}

// What TF32 keeps of a float: the rest is cut off, so that it can be a second operand.
__device__ __forceinline__ float head_of(float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000u); }

// As `by_lanes`, for up to eight rows by matrix units: head head + head tail + tail head.
template <bool ALIGNED, int ROWS, int DEEP, class Share, class X>
__device__ __forceinline__ void by_matrix_units(Share& share, int first, int count, X x, float* part) {
    using L = Layout<ROWS, DEEP>;
    const int thread = this_thread(), warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
    const int column = warp % L::WIDE * L::BLOCKS * 16 + t * 4;
    float high[L::SLABS][4], low[L::SLABS][4];
#pragma unroll
    for (int s = 0; s < L::SLABS; ++s)
#pragma unroll
        for (int k = 0; k < 4; ++k) high[s][k] = low[s][k] = 0;
    const bool there = g < count;
    const float* const row = x(there ? first + g : first);
#pragma unroll
    for (int b = 0; b < L::BLOCKS; ++b) {
        const Vec<4> v = part_of_row<DEEP, ALIGNED>(row, column + b * 16);
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            const float x0 = there ? v.v[2 * step] : 0.0f, x1 = there ? v.v[2 * step + 1] : 0.0f;
            const float b0 = head_of(x0), b1 = head_of(x1);
#pragma unroll
            for (int s = 0; s < L::SLABS; ++s) {
                const int k = (s * L::BLOCKS + b) * 2;
                float head[4], tail[4];
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    float w = share.at(k + e % 2, 2 * step + e / 2);
#ifdef __CUDACC_RTC__
                    asm volatile("" : "+f"(w));  // split here: splits of all would not fit registers
#endif
                    head[e] = head_of(w);
                    tail[e] = w - head[e];
                }
                matrix_unit(high[s], head, b0, b1);
                matrix_unit(low[s], head, x0 - b0, x1 - b1);
                matrix_unit(low[s], tail, b0, b1);
            }
        }
    }
#pragma unroll
    for (int s = 0; s < L::SLABS; ++s)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int q = (warp / L::WIDE * L::SLABS + s) * 16 + k / 2 * 8 + g;
            part[(warp % L::WIDE * TILE_ROWS + 2 * t + k % 2) * L::PADDED + q] = high[s][k] + low[s][k];
        }
}
#endif

constexpr int FEWEST_FOR_UNITS = 5;  // rows

// Two buffers of partial sums that products take in turn, so that one barrier a product is enough.
struct Partial {
    real* first;
    int size;  // of each: that of the largest product
    int side;
};

// y = x times a share: `x(i)` points to row i, `y(i, q, sum)` takes own row q of the result. Results
// are there after the next barrier.
template <bool ALIGNED, int ROWS, int DEEP, class Share, class X, class Y>
__device__ __forceinline__ void multiply(Share& share, int count, X x, Y y, Partial& partial) {
    using L = Layout<ROWS, DEEP>;
#pragma unroll 1
    for (int first = 0; first < count;) {
        const int left = count - first;
        real* const part = partial.first + partial.side * partial.size;
        int n = 1;
#ifdef VRT_MATRIX_UNITS
        if (left >= FEWEST_FOR_UNITS) {
            n = left < TILE_ROWS ? left : TILE_ROWS;
            by_matrix_units<ALIGNED, ROWS, DEEP>(share, first, n, x, part);
        } else
#endif
        if (left >= 3 && sizeof(real) == 4) {  // doubles take twice the registers
            n = left < 4 ? left : 4;
            by_lanes<4, ALIGNED, ROWS, DEEP>(share, first, n, x, part);
        } else if (left >= 2) {
            n = 2;
            by_lanes<2, ALIGNED, ROWS, DEEP>(share, first, n, x, part);
        } else {
            by_lanes<1, ALIGNED, ROWS, DEEP>(share, first, n, x, part);
        }
        __syncthreads();
        for (int at = this_thread(); at < n * ROWS; at += PROCESSOR) {
            const int r = at / ROWS, q = at % ROWS;
            real sum = 0;
#pragma unroll
            for (int k = 0; k < L::WIDE; ++k) sum += part[(k * TILE_ROWS + r) * L::PADDED + q];
            y(first + r, q, sum);
        }
        first += n;
        partial.side ^= 1;
    }
}

// --- products beside the path: tiles of 64 x 64 by all threads

constexpr int BIG = 64, DEPTH = 32, BIG_PITCH = BIG + 8;
struct alignas(16) BigTile {
    real a[2][DEPTH * (BIG_PITCH + 1)], b[2][DEPTH * (BIG_PITCH + 1)];
};

// Elements from one step of the depth to the next: so that what is stored does not clash in the banks,
// vectors along the depth apart, and hardly what is read.
#ifdef VRT_REAL
constexpr int big_pitch(bool) { return BIG_PITCH; }
#else
constexpr int big_pitch(bool along) { return along ? BIG_PITCH : BIG_PITCH + 1; }
#endif

#ifdef VRT_MATRIX_UNITS
// A warp's part of a tile, 32 x 16, by matrix units, heads and tails as in `by_matrix_units`.
struct BigSums {
    float high[2][2][4], low[2][2][4];

    __device__ __forceinline__ BigSums() {
#pragma unroll
        for (int e = 0; e < 16; ++e) high[e / 8][e / 4 % 2][e % 4] = low[e / 8][e / 4 % 2][e % 4] = 0;
    }
    template <int A, int B>
    __device__ __forceinline__ void add(const float* a, const float* b) {
        const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const int i = warp / 4 * 32 + g, j = warp % 4 * 16 + g;
#pragma unroll 2
        for (int k = 0; k < DEPTH; k += 8) {
            float head[2][4], tail[2][4], b_head[2][2], b_tail[2][2];
#pragma unroll
            for (int m = 0; m < 2; ++m)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const float x = a[(k + t + e / 2 * 4) * A + i + m * 16 + e % 2 * 8];
                    head[m][e] = head_of(x);
                    tail[m][e] = x - head[m][e];
                }
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const float x = b[(k + t + e * 4) * B + j + n * 8];
                    b_head[n][e] = head_of(x);
                    b_tail[n][e] = x - b_head[n][e];
                }
#pragma unroll
            for (int m = 0; m < 2; ++m)
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    matrix_unit(high[m][n], head[m], b_head[n][0], b_head[n][1]);
                    matrix_unit(low[m][n], head[m], b_tail[n][0], b_tail[n][1]);
                    matrix_unit(low[m][n], tail[m], b_head[n][0], b_head[n][1]);
                }
        }
    }
    template <class Take>
    __device__ __forceinline__ void give(Take take) const {
        const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    take(warp / 4 * 32 + m * 16 + e / 2 * 8 + g, warp % 4 * 16 + n * 8 + 2 * t + e % 2,
                         high[m][n][e] + low[m][n][e]);
                }
    }
};
#else
// A thread's part of a tile, 4 x 4.
struct BigSums {
    real sum[4][4];

    __device__ __forceinline__ BigSums() {
#pragma unroll
        for (int e = 0; e < 16; ++e) sum[e / 4][e % 4] = 0;
    }
    template <int A, int B>
    __device__ __forceinline__ void add(const real* a, const real* b) {
        const int y = threadIdx.x / 16 * 4, x = threadIdx.x % 16 * 4;
#pragma unroll 2
        for (int k = 0; k < DEPTH; ++k) {
            const Vec<4> u = load<4>(a + k * A + y), v = load<4>(b + k * B + x);
#pragma unroll
            for (int p = 0; p < 4; ++p)
#pragma unroll
                for (int q = 0; q < 4; ++q) sum[p][q] += u.v[p] * v.v[q];
        }
    }
    template <class Take>
    __device__ __forceinline__ void give(Take take) const {
        const int y = threadIdx.x / 16 * 4, x = threadIdx.x % 16 * 4;
#pragma unroll
        for (int e = 0; e < 16; ++e) take(y + e / 4, x + e % 4, sum[e / 4][e % 4]);
    }
};
#endif

// A thread's share of a chunk of a matrix, 64 x 32: V elements at a time, that are neighbours in memory.
template <bool ALONG, int V>
struct BigPart {
    static constexpr int COUNT = BIG * DEPTH / PROCESSOR / V, PITCH = big_pitch(ALONG);
    Vec<V> held[COUNT];

    // Call `each(e, i, k)`: row and depth of the first element of each vector.
    template <class Each>
    __device__ __forceinline__ void places(Each each) {
#pragma unroll
        for (int e = 0; e < COUNT; ++e) {
            const int at = threadIdx.x + e * PROCESSOR;
            if (ALONG) {
                each(e, at % (BIG / V) * V, at / (BIG / V));
            } else {
                each(e, at / (DEPTH / V), at % (DEPTH / V) * V);
            }
        }
    }
    template <class From>
    __device__ __forceinline__ void fetch(int i0, int k0, int rows, int deep, From from) {
        places([&](int e, int i, int k) {
            if (i0 + i < rows && k0 + k < deep) {
                held[e] = load<V>(from(i0 + i, k0 + k));
            } else {
#pragma unroll
                for (int c = 0; c < V; ++c) held[e].v[c] = 0;
            }
        });
    }
    __device__ __forceinline__ void put(real* to) {
        places([&](int e, int i, int k) {
            if (ALONG) {
                store<V>(to + k * PITCH + i, held[e]);
            } else {
#pragma unroll
                for (int c = 0; c < V; ++c) to[(k + c) * PITCH + i] = held[e].v[c];
            }
        });
    }
};

// c(i, j) = sum over k of a(i, k) b(j, k), for i < rows and j < columns; the functions return where an
// element is. ALONG says that neighbours in i lie next to each other in memory, else neighbours in k;
// in that direction there are multiples of V. Tile (down, across) of the result.
template <bool A_ALONG, bool B_ALONG, int V, class A, class B, class C>
__device__ __forceinline__ void big_tile(BigTile& memory, int down, int across, int rows, int columns,
                                         int deep, A a, B b, C c) {
    const int i0 = down * BIG, j0 = across * BIG;
    BigPart<A_ALONG, V> part_a;
    BigPart<B_ALONG, V> part_b;
    BigSums sums;
    part_a.fetch(i0, 0, rows, deep, a);
    part_b.fetch(j0, 0, columns, deep, b);
    part_a.put(memory.a[0]);
    part_b.put(memory.b[0]);
    __syncthreads();
    for (int k0 = 0, side = 0; k0 < deep; k0 += DEPTH, side ^= 1) {
        const bool more = k0 + DEPTH < deep;
        if (more) {
            part_a.fetch(i0, k0 + DEPTH, rows, deep, a);
            part_b.fetch(j0, k0 + DEPTH, columns, deep, b);
        }
        sums.template add<big_pitch(A_ALONG), big_pitch(B_ALONG)>(memory.a[side], memory.b[side]);
        if (more) {
            part_a.put(memory.a[side ^ 1]);
            part_b.put(memory.b[side ^ 1]);
        }
        __syncthreads();
    }
    sums.give([&](int i, int j, real sum) {
        if (i0 + i < rows && j0 + j < columns) c(i0 + i, j0 + j, sum);
    });
}

// Rows of a short result: a warp makes one, its lanes share the depth. `x` and `y` are the first rows.
template <int WIDE, int DEEP>
__device__ __forceinline__ void short_rows(int count, const real* x, const real* w, real* y) {
    const int i = VRT_BLOCK.y * WARPS_EACH + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (i >= count) return;
    real sum[WIDE];
#pragma unroll
    for (int j = 0; j < WIDE; ++j) sum[j] = 0;
#pragma unroll 4
    for (int k = lane; k < DEEP; k += 32) {
        const real v = x[(long long)i * DEEP + k];
#pragma unroll
        for (int j = 0; j < WIDE; ++j) sum[j] += v * w[j * DEEP + k];
    }
#pragma unroll
    for (int j = 0; j < WIDE; ++j) {
        const real total = warp_sum(sum[j]);
        if (lane == 0) y[(long long)i * WIDE + j] = total;
    }
}

constexpr int ADDED_EACH = 4096;  // elements that a block adds up

// Add what the splits of a sum left to a gradient, in their order.
__device__ __forceinline__ void add_splits(real* gradient, const real* left, int size, int splits) {
    const int begin = VRT_BLOCK.x * ADDED_EACH, end = begin + ADDED_EACH < size ? begin + ADDED_EACH : size;
#pragma unroll 4
    for (int at = begin + threadIdx.x; at < end; at += PROCESSOR) {
        real sum = left[at];
        for (int k = 1; k < splits; ++k) sum += left[(long long)k * size + at];
        gradient[at] += sum;
    }
}

// --- following scripts

// A launch of the batched engine.
#define VRT_STEP(name, Args, threads) __device__ __forceinline__ void name(const Args& a)

// Where the arguments of a step lie: all threads read the same.
template <class Arguments>
__device__ __forceinline__ Arguments& step_arguments() {
    static_assert(sizeof(Arguments) <= SCRATCH_AT - ARGS_AT, "arguments fit where they belong");
    return *reinterpret_cast<Arguments*>(shared_memory() + ARGS_AT);
}

// What a segment of the path is given.
struct Tile {
    int n, lo, m, elo;
};

__device__ __forceinline__ Instruction instruction_at(const int* words) {
    const int4* const from = reinterpret_cast<const int4*>(words);
    const int4 x = from[0], y = from[1], z = from[2], u = from[3];
    return {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w, z.x, z.y, z.z, z.w, u.x, u.y, u.z, u.w};
}

__device__ __forceinline__ Instruction read_instruction(const int* script, int at) {
    return instruction_at(script + (long long)INSTRUCTION_WORDS * at);
}

// Copy a word to shared memory without waiting; `end_of_copies` waits for the thread's own.
__device__ __forceinline__ void copy_word(int* to, const int* from) {
#ifdef __CUDACC_RTC__
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from) : "memory");
#else
    *to = *from;
#endif
}
__device__ __forceinline__ void end_of_copies() {
#ifdef __CUDACC_RTC__
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Copy what all processors are to do, and the arguments of the kernel, to shared memory: an instruction
// is there at once then, whatever waits have thrown out of the first cache.
template <class Work>
__device__ __forceinline__ const Work& come_near(const Work& job) {
    static_assert(sizeof(Work) <= SCRATCH_AT - JOB_AT, "the arguments fit where they belong");
    const long long* const from = reinterpret_cast<const long long*>(&job);
    long long* const to = reinterpret_cast<long long*>(shared_memory() + JOB_AT);
    for (int k = threadIdx.x; k < (int)(sizeof(Work) / 8); k += PROCESSOR) to[k] = from[k];
    const int count = (int)(job.o.instructions < NEAR_INSTRUCTIONS ? job.o.instructions : NEAR_INSTRUCTIONS);
    int* const near = reinterpret_cast<int*>(shared_memory() + COMMON_AT);
    for (int k = threadIdx.x; k < count * INSTRUCTION_WORDS; k += PROCESSOR) near[k] = job.o.script[k];
    __syncthreads();
    return *reinterpret_cast<const Work*>(to);
}

__device__ __forceinline__ Instruction next_instruction(const Orders& o, int at) {
    if (at < NEAR_INSTRUCTIONS) {
        return instruction_at(reinterpret_cast<int*>(shared_memory() + COMMON_AT) + at * INSTRUCTION_WORDS);
    }
    return read_instruction(o.script, at);
}

// Run the blocks of a launch, each processor those whose turn it is; `fill` writes its arguments.
template <class Fill, class Step>
__device__ __forceinline__ void take_turns(const Instruction& in, Fill fill, Step step) {
    const int blocks = in.across * in.down, turn = (int)(in.before % gridDim.x);
    const int first = (int)(blockIdx.x + gridDim.x - turn) % (int)gridDim.x;
    if (first >= blocks) return;
    __syncthreads();  // the last step's arguments are no longer read
    if (threadIdx.x == 0) fill();
    for (int block = first; block < blocks; block += gridDim.x) {
        __syncthreads();
        if (threadIdx.x == 0) {
            my_turn().block = {(unsigned)(block % in.across), (unsigned)(block / in.across), 0};
            my_turn().grid = {(unsigned)in.across, (unsigned)in.down, 1};
        }
        __syncthreads();
        step();
    }
}

__device__ __forceinline__ void update_pieces(const Orders& o) {
    const long long step = (long long)gridDim.x * WARPS;
    for (long long first = (long long)blockIdx.x * WARPS; first < o.store.pieces; first += step) {
        switch (o.rule) {
            case 0: update<Sgd>(o.store, first); break;
            case 1: update<Momentum>(o.store, first); break;
            case 2: update<Adagrad>(o.store, first); break;
            default: update<Adam>(o.store, first); break;
        }
    }
}

__device__ __forceinline__ void square_pieces(const Orders& o) {
    const long long step = (long long)gridDim.x * WARPS;
    for (long long first = (long long)blockIdx.x * WARPS; first < o.store.pieces; first += step) {
        sum_squares(o.store, first);
    }
}

// What instructions of a group's script lie in shared memory, two in turn.
__device__ __forceinline__ int* instruction_slot(int k) {
    return reinterpret_cast<int*>(shared_memory() + INSTRUCTION_AT) + k % 2 * INSTRUCTION_WORDS;
}

// Indices of a tile, fetched while the last instruction runs: a wait throws away what the first cache
// holds, and each look at an index would take as long as a look at a child's state.
constexpr int TILE_POINTERS = 64, TILE_EDGES = 128;
struct TileIndices {
    int edge_ptr[TILE_POINTERS], parent_ptr[TILE_POINTERS], child_row[TILE_EDGES], parent_edge[TILE_EDGES];
    int pad_[128];
};
static_assert(2 * sizeof(TileIndices) <= SCRATCH_AT - INDICES_AT, "indices fit where they belong");

__device__ __forceinline__ TileIndices& indices_of(int k) {
    return reinterpret_cast<TileIndices*>(shared_memory() + INDICES_AT)[k % 2];
}

// What a segment reads of the schedule, by absolute numbers: copies in shared memory, where they fit.
struct Indices {
    const int *edge_ptr, *child_row, *parent_ptr, *parent_edge;

    __device__ __forceinline__ void fetch(const Instruction& in, TileIndices& to) const {
        const int t = threadIdx.x;
        if (t < TILE_POINTERS) {
            if (t <= in.n && in.n < TILE_POINTERS) copy_word(&to.edge_ptr[t], edge_ptr + in.lo + t);
        } else if (t < 2 * TILE_POINTERS) {
            const int at = t - TILE_POINTERS;
            if (at <= in.n && in.n < TILE_POINTERS) copy_word(&to.parent_ptr[at], parent_ptr + in.lo + at);
        } else {
            const int at = t - 2 * TILE_POINTERS;
            if (at < in.m && in.m <= TILE_EDGES) copy_word(&to.child_row[at], child_row + in.elo + at);
            if (at < in.parents && in.parents <= TILE_EDGES) {
                copy_word(&to.parent_edge[at], parent_edge + in.first_parent + at);
            }
        }
    }
    __device__ __forceinline__ Indices near(const Instruction& in, const TileIndices& from) const {
        const bool rows = in.n < TILE_POINTERS;
        return {rows ? from.edge_ptr - in.lo : edge_ptr, in.m <= TILE_EDGES ? from.child_row - in.elo : child_row,
                rows ? from.parent_ptr - in.lo : parent_ptr,
                in.parents <= TILE_EDGES ? from.parent_edge - in.first_parent : parent_edge};
    }
};

// One side of the path for a processor: `run(in)` executes an instruction of the group's script.
template <int PROCESSORS, class Run>
__device__ __forceinline__ bool follow(const Orders& o, int side_of_path, int group, unsigned& passed,
                                       Stamps& stamps, const Indices& indices, Run run) {
    const int* const section = o.sections + side_of_path * (o.groups + 1);
    const int begin = section[group], end = section[group + 1];
    const bool reads = threadIdx.x < INSTRUCTION_WORDS;
    for (int k = begin; k < end && k < begin + 2; ++k) {
        if (reads) instruction_slot(k)[threadIdx.x] = o.script[k * INSTRUCTION_WORDS + threadIdx.x];
    }
    __syncthreads();
    if (begin < end) indices.fetch(instruction_at(instruction_slot(begin)), indices_of(begin));
    for (int k = begin; k < end; ++k) {
        end_of_copies();
        __syncthreads();  // what was copied is there, and the last instruction is over
        int next = 0;
        if (reads && k + 2 < end) next = o.script[(k + 2) * INSTRUCTION_WORDS + threadIdx.x];
        if (k + 1 < end) indices.fetch(instruction_at(instruction_slot(k + 1)), indices_of(k + 1));
        const Instruction in = instruction_at(instruction_slot(k));
        stamps.begin(k);
        if (PROCESSORS > 1 && in.wait) {
            passed += PROCESSORS;
            if (!meet(o, o.counters + 2 + group, passed, GROUP_WAIT, k)) return false;
        }
        stamps.waited();
        run(in, indices.near(in, indices_of(k)));
        __syncthreads();
        if (reads) instruction_slot(k)[threadIdx.x] = next;
        stamps.end();
    }
    return true;
}
