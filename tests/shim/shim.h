// CUDA C++ for a C++20 compiler: what kernels use of the language and of its library, on the host.
//
// Each CUDA thread is a fiber; all take turns on the one thread that launches (scheduler.h). One
// runs until it must wait, so a thread that never waits costs a call. What is modelled:
//
// - Blocks, warps of 32, barriers, and shuffles with masks. Threads that have ended count as
//   arrived. What a shuffle reads from a lane that takes no part has all bits set: NaN.
// - All blocks of a launch are resident: they may wait for each other by atomics. A loop that polls
//   must call __nanosleep or an atomic that fails; one of plain loads would never end.
// - `__shared__` memory is thread-local storage of the compiled module, which the runtime fills
//   with NaN, saves and restores as blocks take turns. So nothing else may be thread-local.
// - Memory is sequentially consistent: a missing fence does not show.
//
// Not modelled: which blocks are a cluster, asynchronous copies, inline PTX, textures, streams; of
// tensor cores all but one product.
#pragma once

// Without the C++ library's overloads and special functions, which take 0.1 s to compile.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <string.h>

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

namespace shim {

// The thread that runs. The runtime keeps more about it behind these.
struct Running {
    uint3 thread, block;
    unsigned lane;
};

// A call that a thread may wait in, for reports.
struct Call {
    const char* what;
    const char* file;
    int line;
};

#pragma GCC visibility push(default)
extern Running* running;
extern dim3 grid_size, block_size;

void block_barrier(Call call);
// Wait for the lanes in `mask`, then return the value of lane `source`, or with source ALL one bit
// for each lane whose value is not 0.
unsigned long long exchange(unsigned mask, unsigned long long value, unsigned source, Call call);
// d = c + a b of a warp: 16 x 8 x 8, each lane with its part as `mma.m16n8k8` of TF32 has it.
void multiply_matrices(float* d, const float* a, float b0, float b1, const float* c, Call call);
void sleep(Call call);           // let all others run before this thread goes on
void atomic_done(bool changed, Call call);  // counts as progress, or as a look at what others do
void* dynamic_shared();
void* dynamic_shared_of(unsigned block);  // of one that runs: a cluster's distributed shared memory
// Say that this block leaves; return whether so many blocks all do, or have ended.
bool all_leave(unsigned first, unsigned count);
[[noreturn]] void fail(int code, Call call);  // end the launch with this CUDA error
#pragma GCC visibility pop

constexpr unsigned ALL = 32, PRODUCT = 33;  // in place of a lane to read
constexpr int MISALIGNED_ADDRESS = 716, ARMED_TWICE = 719;

// What a module has beside code: its shared memory, which surrounds `mark` in each host thread.
struct Module {
    char* (*mark)();
    unsigned long before = 0, size = 0;  // bytes of it in front of the mark and in all; 0: unknown
};
static thread_local char shared_mark;
inline Module module{[]() { return &shared_mark; }};

// A kernel as the launch takes it; the constructor adds it to the list of its module.
struct Kernel {
    const char* name;
    void (*call)(const void* parameters);
    unsigned parameter_bytes, threads;
    Module* module;
    Kernel* next;
    static inline Kernel* first = nullptr;

    Kernel(const char* name, void (*call)(const void*), unsigned bytes, unsigned threads)
        : name(name), call(call), parameter_bytes(bytes), threads(threads), module(&shim::module),
          next(first) {
        first = this;
    }
};

template <class T>
unsigned long long to_bits(T x) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    unsigned long long bits = 0;
    memcpy(&bits, &x, sizeof(T));
    return bits;
}

template <class T>
T from_bits(unsigned long long bits) {
    T x;
    memcpy(&x, &bits, sizeof(T));
    return x;
}

}  // namespace shim

// How the host finds the kernels of a module, one after the other; null is before the first and
// after the last.
#define SHIM_EXPORT extern "C" __attribute__((visibility("default"), used)) inline
SHIM_EXPORT shim::Kernel* shim_next_kernel(shim::Kernel* before) {
    return before ? before->next : shim::Kernel::first;
}
SHIM_EXPORT const char* shim_kernel_name(shim::Kernel* kernel) { return kernel->name; }

// The parameter of a call for reports: where it was written.
#define SHIM_AT int line = __builtin_LINE(), const char* file = __builtin_FILE()

#define VRT_KERNEL(name, Args, threads)                                               \
    static void name(const Args& a);                                                  \
    static shim::Kernel name##_kernel(                                                \
        #name, [](const void* parameters) { name(*static_cast<const Args*>(parameters)); }, \
        sizeof(Args), (threads));                                                     \
    static void name(const Args& a)

#define VRT_SHARED(type, name) type* const name = static_cast<type*>(shim::dynamic_shared())

#define VRT_CHECK_ALIGNED(address, type)                                     \
    if (reinterpret_cast<unsigned long>(address) % alignof(type) != 0) {     \
        shim::fail(shim::MISALIGNED_ADDRESS, {"a vector access", __FILE__, __LINE__}); \
    }

// A barrier in shared memory is armed again before it has completed: a GPU ends the launch.
#define VRT_CHECK_COMPLETED(completed)                                            \
    if (!(completed)) {                                                           \
        shim::fail(shim::ARMED_TWICE, {"a barrier is armed twice", __FILE__, __LINE__}); \
    }

// --- the language

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static thread_local
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))

#define threadIdx (shim::running->thread)
#define blockIdx (shim::running->block)
#define blockDim (shim::block_size)
#define gridDim (shim::grid_size)
constexpr int warpSize = 32;

#define SHIM_VECTORS(scalar, name, small, large)                                          \
    struct alignas(small) name##2 {                                                       \
        scalar x, y;                                                                      \
    };                                                                                    \
    struct alignas(large) name##4 {                                                       \
        scalar x, y, z, w;                                                                \
    };                                                                                    \
    inline name##2 make_##name##2(scalar x, scalar y) { return {x, y}; }                  \
    inline name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) {               \
        return {x, y, z, w};                                                              \
    }
SHIM_VECTORS(float, float, 8, 16)
SHIM_VECTORS(double, double, 16, 16)
SHIM_VECTORS(int, int, 8, 16)
SHIM_VECTORS(unsigned, uint, 8, 16)

// --- barriers and exchanges

inline void __syncthreads(SHIM_AT) { shim::block_barrier({"__syncthreads", file, line}); }

inline void __syncwarp(unsigned mask = 0xffffffffu, SHIM_AT) {
    shim::exchange(mask, 0, shim::ALL, {"__syncwarp", file, line});
}

inline unsigned __ballot_sync(unsigned mask, int yes, SHIM_AT) {
    return (unsigned)shim::exchange(mask, yes != 0, shim::ALL, {"__ballot_sync", file, line});
}

inline int __any_sync(unsigned mask, int yes, SHIM_AT) {
    return shim::exchange(mask, yes != 0, shim::ALL, {"__any_sync", file, line}) != 0;
}

inline int __all_sync(unsigned mask, int yes, SHIM_AT) {
    return shim::exchange(mask, yes == 0, shim::ALL, {"__all_sync", file, line}) == 0;
}

// A warp is cut in parts of `width` lanes, a power of two; a lane that would read outside its part
// reads itself, except that the index of __shfl_sync wraps.
template <class T>
T __shfl_sync(unsigned mask, T x, int source, int width = 32, SHIM_AT) {
    const unsigned part = shim::running->lane & ~(unsigned)(width - 1);
    const unsigned from = part | ((unsigned)source & (unsigned)(width - 1));
    const shim::Call call{"__shfl_sync", file, line};
    return shim::from_bits<T>(shim::exchange(mask, shim::to_bits(x), from, call));
}

template <class T>
T __shfl_xor_sync(unsigned mask, T x, int flip, int width = 32, SHIM_AT) {
    const unsigned lane = shim::running->lane, other = lane ^ (unsigned)flip;
    const unsigned end = (lane & ~(unsigned)(width - 1)) + (unsigned)width;
    const shim::Call call{"__shfl_xor_sync", file, line};
    const unsigned from = other < end ? other : lane;
    return shim::from_bits<T>(shim::exchange(mask, shim::to_bits(x), from, call));
}

template <class T>
T __shfl_down_sync(unsigned mask, T x, unsigned distance, int width = 32, SHIM_AT) {
    const unsigned lane = shim::running->lane, inside = lane & (unsigned)(width - 1);
    const unsigned from = inside + distance < (unsigned)width ? lane + distance : lane;
    const shim::Call call{"__shfl_down_sync", file, line};
    return shim::from_bits<T>(shim::exchange(mask, shim::to_bits(x), from, call));
}

template <class T>
T __shfl_up_sync(unsigned mask, T x, unsigned distance, int width = 32, SHIM_AT) {
    const unsigned lane = shim::running->lane, inside = lane & (unsigned)(width - 1);
    const unsigned from = inside >= distance ? lane - distance : lane;
    const shim::Call call{"__shfl_up_sync", file, line};
    return shim::from_bits<T>(shim::exchange(mask, shim::to_bits(x), from, call));
}

// --- memory

template <class T>
struct shim_same {
    typedef T type;
};
template <class T>
using shim_no_deduce = typename shim_same<T>::type;

#define SHIM_ATOMIC(name, result, looks)                                 \
    template <class T>                                                   \
    T name(T* at, shim_no_deduce<T> x, SHIM_AT) {                        \
        const T old = *at;                                               \
        *at = (result);                                                  \
        shim::atomic_done(!(looks), {#name, file, line});                \
        return old;                                                      \
    }
// The last column: this call changed nothing, as one that polls does.
SHIM_ATOMIC(atomicAdd, old + x, x == T(0))
SHIM_ATOMIC(atomicSub, old - x, x == T(0))
SHIM_ATOMIC(atomicMax, old < x ? x : old, false)
SHIM_ATOMIC(atomicMin, x < old ? x : old, false)
SHIM_ATOMIC(atomicOr, old | x, x == T(0))
SHIM_ATOMIC(atomicAnd, old & x, false)
SHIM_ATOMIC(atomicExch, x, old == x)

template <class T>
T atomicCAS(T* at, shim_no_deduce<T> expected, shim_no_deduce<T> x, SHIM_AT) {
    const T old = *at;
    if (old == expected) *at = x;
    shim::atomic_done(old == expected, {"atomicCAS", file, line});
    return old;
}

inline void __threadfence(SHIM_AT) { shim::atomic_done(true, {"__threadfence", file, line}); }
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned, SHIM_AT) { shim::sleep({"__nanosleep", file, line}); }

template <class T>
T __ldg(const T* from) {
    return *from;
}
template <class T>
T __ldcg(const T* from) {
    return *from;
}
template <class T>
T __ldcs(const T* from) {
    return *from;
}
template <class T>
void __stcg(T* to, shim_no_deduce<T> x) {
    *to = x;
}
template <class T>
void __stcs(T* to, shim_no_deduce<T> x) {
    *to = x;
}

// --- numbers; the rest is in math.h

inline int __float_as_int(float x) { return shim::from_bits<int>(shim::to_bits(x)); }
inline unsigned __float_as_uint(float x) { return shim::from_bits<unsigned>(shim::to_bits(x)); }
inline float __int_as_float(int x) { return shim::from_bits<float>(shim::to_bits(x)); }
inline float __uint_as_float(unsigned x) { return shim::from_bits<float>(shim::to_bits(x)); }
inline long long __double_as_longlong(double x) {
    return shim::from_bits<long long>(shim::to_bits(x));
}
inline double __longlong_as_double(long long x) {
    return shim::from_bits<double>(shim::to_bits(x));
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned x, unsigned y) {
    return (unsigned)((unsigned long long)x * y >> 32);
}

// Macros where the C library has, or will have, a function of the same name.
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define rsqrtf(x) (1.0f / sqrtf(x))
#define rsqrt(x) (1.0 / sqrt(x))
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }

inline float min(float x, float y) { return fminf(x, y); }
inline float max(float x, float y) { return fmaxf(x, y); }
inline double min(double x, double y) { return fmin(x, y); }
inline double max(double x, double y) { return fmax(x, y); }
#define SHIM_MIN_MAX(type)                                          \
    inline type min(type x, type y) { return y < x ? y : x; }       \
    inline type max(type x, type y) { return x < y ? y : x; }
SHIM_MIN_MAX(int)
SHIM_MIN_MAX(unsigned)
SHIM_MIN_MAX(long)
SHIM_MIN_MAX(unsigned long)
SHIM_MIN_MAX(long long)
SHIM_MIN_MAX(unsigned long long)
