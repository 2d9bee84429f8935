// How the members of a group wait for each other, and what they send each other where they are a
// cluster.
#pragma once
#include "path_copies.cuh"
#include "barrier.cuh"

// A group that is a cluster has barriers in its members' shared memory: four times faster than a
// counter in the second-level cache. At `all` the members meet. `ring` counts what comes to a
// member's ring, and that it wants it: who has received all rows of an epoch knows that all members
// are through with it. Of each there are two in turn: who is through with one may go on to the next
// while what a third has sent to somebody is still under way.
#ifdef __CUDACC_RTC__
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ unsigned shared_address(const void* at) {
    return (unsigned)__cvta_generic_to_shared(at);
}
__device__ __forceinline__ unsigned address_at(unsigned own, int member) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(member));
    return there;
}
__device__ __forceinline__ bool open_cluster(const Orders& o, unsigned*) {
    if (threadIdx.x < 4) {
        const int turn = threadIdx.x % 2;
        const unsigned long long* const barrier =
            threadIdx.x < 2 ? &shared_state().ring[turn] : &shared_state().all[turn];
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                     "r"(threadIdx.x < 2 ? 1 : (int)o.members));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
    return true;
}
// Wait until no member sends any more, before one that gave up ends: its shared memory ends with
// it. Who has ended counts as come, and every wait of the others has an end.
__device__ __forceinline__ void close_cluster(const Orders& o) {
    if (o.members == 0) return;
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
template <int PROCESSORS>
__device__ __forceinline__ void arrive(unsigned turn, int member) {
    const unsigned there = address_at(shared_address(&shared_state().all[turn & 1]), member);
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(there)
                 : "memory");
}
__device__ __forceinline__ void expect(unsigned turn, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 _, [%0], %1;" ::"r"(
                     shared_address(&shared_state().ring[turn & 1])),
                 "r"(bytes)
                 : "memory");
}
// How often a barrier, of which there are two in turn, was completed: `turn`, or one less.
__device__ __forceinline__ unsigned completed(const unsigned long long* barriers, unsigned turn) {
    unsigned over;
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;"
        " selp.u32 %0, 1, 0, p; }"
        : "=r"(over)
        : "r"(shared_address(&barriers[turn & 1])), "r"((turn - 1) / 2 & 1)
        : "memory");
    return turn - 1 + over;
}
template <int PROCESSORS>
__device__ __forceinline__ unsigned members_arrived(unsigned turn) {
    return completed(shared_state().all, turn);
}
__device__ __forceinline__ unsigned receipts(unsigned turn, unsigned long long) {
    return completed(shared_state().ring, turn);
}
// What is added to an address of own shared memory for the same place in that of a member.
template <int PROCESSORS>
__device__ __forceinline__ unsigned way_to(int member) {
    const unsigned own = shared_address(&shared_state());
    return address_at(own, member) - own;
}
// Send a member W reals: they come to its shared memory where `own` is in that of the sender, and
// are counted at the barrier of the ring.
template <int PROCESSORS, int W>
__device__ __forceinline__ void send(real* own, const Vec<W>& x, unsigned turn, unsigned way) {
    const unsigned to = shared_address(own) + way,
                   barrier = shared_address(&shared_state().ring[turn & 1]) + way;
#ifdef VRT_REAL
    if (W == 2) {
        asm volatile(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f64 [%0], {%1, %2}, "
            "[%3];" ::"r"(to),
            "d"(x.v[0]), "d"(x.v[W - 1]), "r"(barrier)
            : "memory");
    } else {
        asm volatile(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f64 [%0], %1, [%2];" ::"r"(
                to),
            "d"(x.v[0]), "r"(barrier)
            : "memory");
    }
#else
    if (W == 4) {
        asm volatile(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, "
            "%4}, [%5];" ::"r"(to),
            "f"(x.v[0]), "f"(x.v[1 % W]), "f"(x.v[2 % W]), "f"(x.v[3 % W]), "r"(barrier)
            : "memory");
    } else {
        asm volatile(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
                to),
            "f"(x.v[0]), "r"(barrier)
            : "memory");
    }
#endif
}
#else
__device__ __forceinline__ bool open_cluster(const Orders&, unsigned*) {
    return true;
}
__device__ __forceinline__ void close_cluster(const Orders&) {}
template <int PROCESSORS>
__device__ __forceinline__ void arrive(unsigned, int) {}
__device__ __forceinline__ void expect(unsigned, unsigned) {}
template <int PROCESSORS>
__device__ __forceinline__ unsigned members_arrived(unsigned turn) {
    return turn - 1;
}
__device__ __forceinline__ unsigned receipts(unsigned turn, unsigned long long) {
    return turn - 1;
}
template <int PROCESSORS>
__device__ __forceinline__ unsigned way_to(int) {
    return 0;
}
template <int PROCESSORS, int W>
__device__ __forceinline__ void send(real*, const Vec<W>&, unsigned, unsigned) {}
#endif
#else
// In the shim barriers count from the start on: who came, and the bytes that came.
inline bool open_cluster(const Orders& o, unsigned* counter) {
    shared_state().ring[0] = shared_state().ring[1] = shared_state().all[0] =
        shared_state().all[1] = 0;
    return counter_barrier(o, counter, (unsigned)o.members, GROUP_WAIT, 0);
}
inline void close_cluster(const Orders&) {}  // a block's memory outlives it
template <int PROCESSORS>
inline SharedState& shared_state_of(int member) {
    const unsigned first = blockIdx.x - blockIdx.x % PROCESSORS;
    return *static_cast<SharedState*>(shim::dynamic_shared_of(first + (unsigned)member));
}
template <int PROCESSORS>
inline void arrive(unsigned turn, int member) {
    atomicAdd(&shared_state_of<PROCESSORS>(member).all[turn & 1], 1ull);
}
inline void expect(unsigned, unsigned) {}
template <int PROCESSORS>
inline unsigned members_arrived(unsigned turn) {
    return shared_state().all[turn & 1] >= (turn + 1ull) / 2 * PROCESSORS ? turn : turn - 1;
}
inline unsigned receipts(unsigned turn, unsigned long long bytes) {
    return shared_state().ring[turn & 1] >= bytes ? turn : turn - 1;
}
template <int PROCESSORS>
inline unsigned way_to(int member) {
    return (unsigned)member;
}
template <int PROCESSORS, int W>
inline void send(real* own, const Vec<W>& x, unsigned turn, unsigned way) {
    SharedState& there = shared_state_of<PROCESSORS>((int)way);
    const long long at = reinterpret_cast<unsigned char*>(own) - shared_memory();
    store<W>(reinterpret_cast<real*>(reinterpret_cast<unsigned char*>(&there) + at), x);
    atomicAdd(&there.ring[turn & 1], (unsigned long long)(W * sizeof(real)));
}
#endif

// The members of a processor's group, how often they have waited for each other, and how often for
// all.
struct GroupBarrier {
    unsigned* counter;
    unsigned turn, met;
#ifndef __CUDACC_RTC__
    unsigned long long bytes[2];  // that have come to each barrier of the ring by the next time
#endif

    // Tell the others that all threads of this processor, which have met, have come.
    //
    // all: with what they have written; elements: of the ring that have come since the last time.
    template <int PROCESSORS>
    __device__ __forceinline__ void come(const Orders& o, bool all, int elements) {
        ++turn;
        met += all;
        const int thread = this_thread();
        if (o.members == 0) {
            if (thread == 0) add_release(counter, 1);
            return;
        }
#ifndef __CUDACC_RTC__
        bytes[turn & 1] += elements * sizeof(real);
#endif
        if (thread == 0) expect(turn, elements * (unsigned)sizeof(real));
        if (all && thread < PROCESSORS) arrive<PROCESSORS>(met, thread);
    }
    // Wait for the others; false, when one did not come in time.
    template <int PROCESSORS>
    __device__ __forceinline__ bool wait(const Orders& o, bool all, int instruction) {
        if (threadIdx.x == 0) {
            bool alive = true;
            if (o.members == 0) {
                alive = wait_until(
                    o, [&]() { return load_acquire(counter); }, turn * PROCESSORS, GROUP_WAIT,
                    instruction);
            } else {
#ifdef __CUDACC_RTC__
                const unsigned long long sent = 0;
#else
                const unsigned long long sent = bytes[turn & 1];
#endif
                if (all) {
                    alive = wait_until(
                        o, [&]() { return members_arrived<PROCESSORS>(met); }, met, GROUP_WAIT,
                        instruction);
                }
                alive = alive && wait_until(
                                     o, [&]() { return receipts(turn, sent); }, turn, GROUP_WAIT,
                                     instruction);
            }
            shared_state().turn.alive = alive;
        }
        wait_for_copies<1>();
        __syncthreads();
        return shared_state().turn.alive;
    }
};
