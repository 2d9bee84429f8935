// Rows that the members of a group hand each other while levels are repeated, where the group is
// too large to be a cluster: through memory, each element in one word with a tag. A member that
// finds the tag has the element, so that none waits at a barrier, and no store at a fence.
//
// Each member posts its elements of a row once, and collects all of the row into its own ring. A
// tag, which is never zero, is of one repetition of a launch, and the letters are zero when a
// launch begins. A row's letters are written again two repetitions later at the earliest: by then
// all members have posted what follows from them, and have collected them before.
//
// Source: the protocol LL of NCCL, whose words have a flag beside the data.
#pragma once
#include "ring.cuh"

typedef unsigned long long Letter;  // the element is in the lower half
struct alignas(16) TwoLetters {
    Letter of[2];
};

#ifdef __CUDACC_RTC__
__device__ __forceinline__ void put_letter(Letter* at, float x, unsigned tag) {
    const Letter letter = (Letter)tag << 32 | __float_as_uint(x);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(letter) : "memory");
}
__device__ __forceinline__ TwoLetters get_letters(const Letter* at) {
    TwoLetters x;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(x.of[0]), "=l"(x.of[1])
                 : "l"(at)
                 : "memory");
    return x;
}
__device__ __forceinline__ float element_of(Letter x) { return __uint_as_float((unsigned)x); }
#else
inline void put_letter(Letter* at, float x, unsigned tag) {
    unsigned bits;
    __builtin_memcpy(&bits, &x, sizeof(bits));
    __atomic_store_n(at, (Letter)tag << 32 | bits, __ATOMIC_RELAXED);
}
inline TwoLetters get_letters(const Letter* at) {
    return {{__atomic_load_n(at, __ATOMIC_RELAXED), __atomic_load_n(at + 1, __ATOMIC_RELAXED)}};
}
inline float element_of(Letter x) {
    const unsigned bits = (unsigned)x;
    float element;
    __builtin_memcpy(&element, &bits, sizeof(element));
    return element;
}
#endif

// Tell whether rows of a repetition come by mail. Letters are twice as many bytes as elements, and
// a member that waits reads them again and again: more than two rows, or several groups, take
// longer than with a barrier.
__device__ __forceinline__ bool comes_by_mail(const Orders& o, int rows) {
    return rows <= 2 && o.groups == 1;
}

// The letters of a launch of one group, behind its counters.
template <int PROCESSORS>
__device__ __forceinline__ Letter* letters_of(const Orders& o) {
    const int counters = 2 + gridDim.x / PROCESSORS;
    return reinterpret_cast<Letter*>(o.counters + (counters + 3) / 4 * 4);
}

// Write an element into a row of the own ring, and post it, if there are letters. Of the lanes that
// have the same elements again, see `hand_on`, the first ones post them.
template <int T, int APART>
__device__ __forceinline__ void post(const real* ring, real* own, real x, Letter* mail,
                                     unsigned tag) {
    *own = x;
    if (mail == nullptr || this_thread() % APART >= T) return;
    put_letter(mail + (own - ring), (float)x, tag);
}

// Wait for the letters of SIZE elements of some rows, and copy them to the ring. Returns false when
// some did not come in time.
template <int SIZE, class Rows>
__device__ __forceinline__ bool collect(const Orders& o, const Letter* mail, real* ring, int step,
                                        Rows rows, unsigned tag, int instruction) {
    static_assert(SIZE % 2 == 0, "letters are read by twos");
    constexpr int PAIRS = SIZE / 2, AT_ONCE = 4;
    const int all = rows * PAIRS;
    bool there = true;
#pragma unroll 1
    for (int first = this_thread(); first < all; first += AT_ONCE * PROCESSOR) {
        TwoLetters found[AT_ONCE];
        auto place = [&](int k) {
            const int at = first + k * PROCESSOR;
            return rows == 1 ? at * 2 : at / PAIRS * step + at % PAIRS * 2;
        };
        auto look = [&]() {
            bool complete = true;
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k)
                if (first + k * PROCESSOR < all) found[k] = get_letters(mail + place(k));
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k)
                if (first + k * PROCESSOR < all)
                    complete = complete && (unsigned)(found[k].of[0] >> 32) == tag &&
                               (unsigned)(found[k].of[1] >> 32) == tag;
            return complete ? tag : tag - 1;
        };
        there = wait_until(o, look, tag, GROUP_WAIT, instruction) && there;
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            if (first + k * PROCESSOR >= all) continue;
            real* const to = ring + place(k);
            to[0] = element_of(found[k].of[0]);
            to[1] = element_of(found[k].of[1]);
        }
    }
    return there;
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
