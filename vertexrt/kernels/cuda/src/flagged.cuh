// Rows that the members of a group hand each other while levels are repeated, where the group is
// too large to be a cluster: through memory, each element in one word with a flag. A member that
// finds the flag has the element, so that none waits at a barrier, and no store at a fence.
//
// Each member sends its elements of a row once, and receives all of the row into its own ring. A
// flag, which is never zero, is of one repetition of a launch, and the words are zero when a launch
// begins. A row's words are written again two repetitions later at the earliest: by then all
// members have sent what follows from them, and have received them before.
//
// Source: the protocol LL of NCCL.
#pragma once
#include "ring.cuh"

struct alignas(16) TwoFlagged {
    FlaggedWord of[2];
};

#ifdef __CUDACC_RTC__
__device__ __forceinline__ void put_flagged(FlaggedWord* at, float x, unsigned flag) {
    const FlaggedWord word = (FlaggedWord)flag << 32 | __float_as_uint(x);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(word) : "memory");
}
__device__ __forceinline__ TwoFlagged get_flagged(const FlaggedWord* at) {
    TwoFlagged x;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(x.of[0]), "=l"(x.of[1])
                 : "l"(at)
                 : "memory");
    return x;
}
__device__ __forceinline__ float element_of(FlaggedWord x) { return __uint_as_float((unsigned)x); }
#else
inline void put_flagged(FlaggedWord* at, float x, unsigned flag) {
    unsigned bits;
    __builtin_memcpy(&bits, &x, sizeof(bits));
    __atomic_store_n(at, (FlaggedWord)flag << 32 | bits, __ATOMIC_RELAXED);
}
inline TwoFlagged get_flagged(const FlaggedWord* at) {
    return {{__atomic_load_n(at, __ATOMIC_RELAXED), __atomic_load_n(at + 1, __ATOMIC_RELAXED)}};
}
inline float element_of(FlaggedWord x) {
    const unsigned bits = (unsigned)x;
    float element;
    __builtin_memcpy(&element, &bits, sizeof(element));
    return element;
}
#endif

// Tell whether rows of a repetition are sent with flags; else the members meet at a barrier. Words
// are twice as many bytes as elements, and a member that waits reads them again and again: for more
// rows that takes longer. The host gives words where several groups would not.
__device__ __forceinline__ bool uses_flags(const Orders& o, int rows) {
    return rows <= 2 && o.flagged != nullptr;
}

// Wait for about as long as words are on their way: looks for what has not come yet would only be
// in their way. A request to an LSTM of 1024 in 128 processors took 219 us on an H200 without a
// pause, and takes 182 with this one.
constexpr int PAUSE = 400;  // cycles
__device__ __forceinline__ void pause() {
#ifdef __CUDACC_RTC__
    for (const long long start = clock64(); clock64() - start < PAUSE;) {
    }
#endif
}

// Write an element into a row of the own ring, and send it, if there are words. Of the lanes that
// have the same elements again, see `hand_on`, the first ones send them.
template <int T, int APART>
__device__ __forceinline__ void send_flagged(const real* ring, real* own, real x,
                                             FlaggedWord* words, unsigned flag) {
    *own = x;
    if (words == nullptr || this_thread() % APART >= T) return;
    put_flagged(words + (own - ring), (float)x, flag);
}

// Wait until the words of SIZE elements of some rows have come, and copy the elements to the ring.
// A thread that gives up notes it.
template <int SIZE, class Rows>
__device__ __forceinline__ void receive(const Orders& o, const FlaggedWord* words, real* ring,
                                        int step, Rows rows, unsigned flag, int instruction) {
    static_assert(SIZE % 2 == 0, "words are read by twos");
    constexpr int PAIRS = SIZE / 2, AT_ONCE = 4;
    const int all = rows * PAIRS;
    bool there = true;
#pragma unroll 1
    for (int first = this_thread(); first < all; first += AT_ONCE * PROCESSOR) {
        TwoFlagged found[AT_ONCE];
        auto place = [&](int k) {
            const int at = first + k * PROCESSOR;
            return rows == 1 ? at * 2 : at / PAIRS * step + at % PAIRS * 2;
        };
        auto look = [&]() {
            bool complete = true;
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k)
                if (first + k * PROCESSOR < all) found[k] = get_flagged(words + place(k));
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k)
                if (first + k * PROCESSOR < all)
                    complete = complete && (unsigned)(found[k].of[0] >> 32) == flag &&
                               (unsigned)(found[k].of[1] >> 32) == flag;
            return complete ? flag : flag - 1;
        };
        there = wait_until(o, look, flag, GROUP_WAIT, instruction) && there;
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            if (first + k * PROCESSOR >= all) continue;
            real* const to = ring + place(k);
            to[0] = element_of(found[k].of[0]);
            to[1] = element_of(found[k].of[1]);
        }
    }
    if (!there) shared_state().turn.gave_up = flag;
}

// Copy rows of states, SIZE elements each, to the ring.
template <int SIZE>
__device__ __forceinline__ void copy_states(real* ring, int step, int rows, const real* states) {
    constexpr int W = SIZE % VECTOR == 0 ? VECTOR : 1, PARTS = SIZE / W;
    for (int at = this_thread(); at < rows * PARTS; at += PROCESSOR) {
        const int row = at / PARTS, k = at % PARTS * W;
        store<W>(ring + row * step + k, load<W>(states + row * SIZE + k));
    }
}
