// Barriers of a group, and stores between the members of a group that is a thread-block cluster.
#pragma once
#include "async_copy.cuh"
#include "barrier.cuh"

constexpr int VECTOR = 16 / sizeof(real);

// A group that is a cluster has barriers in its members' shared memory, which are four times faster
// than a counter in the second-level cache. `all` is a barrier of all members. `ring` counts the
// bytes that arrive in a member's shared memory: receiving all of an epoch implies that every
// member has finished the epoch. There are two of each, used in turn, since a member may reach the
// next barrier while another member's stores are still in flight.
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
// Wait until no member sends any more, before a member that gave up ends: its shared memory ends
// with it. A member that has ended counts as arrived, and every wait of the others is bounded.
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
// How often a barrier, one of two used in turn, has completed: `turn`, or one less. Who goes on to
// read memory acquires it of the cluster, which empties the first-level cache. What was sent is in
// shared memory, which has no cache.
template <bool OF_MEMORY>
__device__ __forceinline__ unsigned completed(const unsigned long long* barriers, unsigned turn) {
    const unsigned at = shared_address(&barriers[turn & 1]), parity = (turn - 1) / 2 & 1;
    unsigned over;
    if (OF_MEMORY) {
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;"
            " selp.u32 %0, 1, 0, p; }"
            : "=r"(over)
            : "r"(at), "r"(parity)
            : "memory");
    } else {
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;"
            " selp.u32 %0, 1, 0, p; }"
            : "=r"(over)
            : "r"(at), "r"(parity)
            : "memory");
    }
    return turn - 1 + over;
}
template <int PROCESSORS>
__device__ __forceinline__ unsigned members_arrived(unsigned turn) {
    return completed<true>(shared_state().all, turn);
}
__device__ __forceinline__ unsigned receipts(unsigned turn, unsigned long long) {
    return completed<false>(shared_state().ring, turn);
}
// Offset from an address in own shared memory to the same place in that of a member.
template <int PROCESSORS>
__device__ __forceinline__ unsigned way_to(int member) {
    const unsigned own = shared_address(&shared_state());
    return address_at(own, member) - own;
}
// Send W reals to a member: they are stored in its shared memory at the place that `own` has in the
// sender's, and counted at the barrier of its ring.
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
__device__ __forceinline__ bool open_cluster(const Orders&, unsigned*) { return true; }
__device__ __forceinline__ void close_cluster(const Orders&) {}
template <int PROCESSORS>
__device__ __forceinline__ void arrive(unsigned, int) {}
__device__ __forceinline__ void expect(unsigned, unsigned) {}
template <int PROCESSORS>
__device__ __forceinline__ unsigned members_arrived(unsigned turn) {
    return turn - 1;
}
__device__ __forceinline__ unsigned receipts(unsigned turn, unsigned long long) { return turn - 1; }
template <int PROCESSORS>
__device__ __forceinline__ unsigned way_to(int) {
    return 0;
}
template <int PROCESSORS, int W>
__device__ __forceinline__ void send(real*, const Vec<W>&, unsigned, unsigned) {}
#endif
#else
// In the shim, barriers count from the start of the kernel: arrivals, and bytes received.
inline bool open_cluster(const Orders& o, unsigned* counter) {
    shared_state().ring[0] = shared_state().ring[1] = shared_state().all[0] =
        shared_state().all[1] = 0;
    come_to(counter);
    return wait_for(o, counter, (unsigned)o.members, GROUP_WAIT, 0);
}
inline void close_cluster(const Orders& o) {
    const unsigned members = (unsigned)o.members;
    if (members == 0) return;
    while (!shim::all_leave(blockIdx.x - blockIdx.x % members, members)) back_off();
}
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

// State of a group's barriers: how often its members have met by what they sent, how often on all
// writes, and the flag of what they handed on last.
struct GroupBarrier {
    unsigned* counter;
    unsigned turn, met, flag;
#ifndef __CUDACC_RTC__
    unsigned long long bytes[2];  // expected at each barrier of what is sent so far
#endif

    // Wait until all writes of all members to memory are there, after a barrier of this processor's
    // threads. Returns false when one did not arrive in time.
    template <int PROCESSORS>
    __device__ __forceinline__ bool meet(const Orders& o, int instruction) {
        ++met;
        const int thread = this_thread();
        if (o.members != 0) {
            if (thread < PROCESSORS) arrive<PROCESSORS>(met, thread);
        } else if (thread == 0) {
            add_release(counter, 1);
        }
        if (thread == 0) {
            const bool near = o.members != 0;
            const unsigned value = near ? met : met * PROCESSORS;
            shared_state().turn.alive = wait_until(
                o,
                [&]() { return near ? members_arrived<PROCESSORS>(met) : load_acquire(counter); },
                value, GROUP_WAIT, instruction);
        }
        __syncthreads();
        return shared_state().turn.alive;
    }
};
