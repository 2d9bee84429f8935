// Bounded waits, and the channel by which the members of a group hand each other vectors.
#pragma once
#include "flagged.cuh"

enum Scope { ALONE, CLUSTER, GRID };  // of a group of 1, up to 16, and more processors
constexpr int MOST_OF_A_CLUSTER = 16;
constexpr Scope scope_of(int processors) {
    return processors == 1 ? ALONE : processors <= MOST_OF_A_CLUSTER ? CLUSTER : GRID;
}

// A wait of one thread that ends when something has come, or gives up for good: a thread that has
// given up waits for nothing more, and sends nothing. Most waits are short, and a clock is slow to
// read: none is for so many looks.
#ifdef __CUDACC_RTC__
constexpr int SHORT_WAIT = 256;
#else
constexpr int SHORT_WAIT = 16;
#endif
struct Token {
    const Orders& o;
    int instruction;
    bool alive = true;

    template <class Look>
    __device__ __forceinline__ void wait(Look look, unsigned value) {
#pragma unroll 1
        for (int k = 0; alive && k < SHORT_WAIT; ++k)
            if ((int)(look() - value) >= 0) return;
        if (alive) alive = wait_until(o, look, value, GROUP_WAIT, instruction);
    }
};

// Wait until all writes of all members to memory are there.
template <int PROCESSORS>
__device__ __forceinline__ void meet_in_memory(Token& token, GroupBarrier& barriers) {
    __syncthreads();
    token.alive = barriers.meet<PROCESSORS>(token.o, token.instruction) && token.alive;
}

// What a stage hands on comes to all members, to the same place of the shared memory of each.
//
//     channel.send(own, x)     x, which belongs at `own` in this member's shared memory
//     channel.meet(elements)   wait until so many reals have come from all members together
//     channel.barrier()        wait for all writes of all members to memory
//     channel.thread           this thread: read anew in front of waits, since that takes as long
//                              as a load, and not kept in a register else
//
// Every member sends in every meeting, so whoever has met knows that all others have read what came
// with the meeting before. `own` of the next meeting must be another place.
template <int PROCESSORS, Scope = scope_of(PROCESSORS)>
struct Channel;

// A member alone writes everything where it belongs.
template <int PROCESSORS>
struct Channel<PROCESSORS, ALONE> {
    static constexpr int rank = 0;
    int thread = this_thread();
    Token token;
    __device__ __forceinline__ Channel(const Orders& o, GroupBarrier&, int, int instruction)
        : token{o, instruction} {}
    __device__ __forceinline__ void barrier() { __syncthreads(); }
};

// Members of a cluster store to each other's shared memory, and a barrier there counts bytes. A
// thread sends to one member.
template <int PROCESSORS>
struct Channel<PROCESSORS, CLUSTER> {
    static constexpr int SHARE = PROCESSOR / PROCESSORS;  // threads that send to a member
    int thread = this_thread();
    Token token;
    GroupBarrier& barriers;
    int rank;
    unsigned way;

    __device__ __forceinline__ Channel(const Orders& o, GroupBarrier& barriers, int,
                                       int instruction)
        : token{o, instruction},
          barriers(barriers),
          rank(this_processor() % PROCESSORS),
          way(way_to<PROCESSORS>(thread / SHARE < PROCESSORS ? thread / SHARE : 0)) {}
    // Which of the threads that send to its member this one is; SHARE and more for one without.
    __device__ __forceinline__ int turn() const {
        return thread < SHARE * PROCESSORS ? thread % SHARE : SHARE;
    }
    template <int W>
    __device__ __forceinline__ void send(real* own, const Vec<W>& x) const {
        if (token.alive) ::send<PROCESSORS, W>(own, x, barriers.turn + 1, way);
    }
    __device__ __forceinline__ void meet(int elements) {
        const unsigned turn = ++barriers.turn;
#ifdef __CUDACC_RTC__
        if (thread == 0 && token.alive) expect(turn, elements * (unsigned)sizeof(real));
        const unsigned long long bytes = 0;
#else
        const unsigned long long bytes = barriers.bytes[turn & 1] += elements * sizeof(real);
#endif
        token.wait([&]() { return receipts(turn, bytes); }, turn);
    }
    __device__ __forceinline__ void barrier() { meet_in_memory<PROCESSORS>(token, barriers); }
};

// Members anywhere on the device exchange words with flags, in two rooms of memory that are used in
// turn.
template <int PROCESSORS>
struct Channel<PROCESSORS, GRID> {
    static constexpr int EACH = sizeof(real) / sizeof(float);  // words of an element
    int thread = this_thread();
    Token token;
    GroupBarrier& barriers;
    FlaggedWord* words;
    int rank, room;

    // room: words of each room.
    __device__ __forceinline__ Channel(const Orders& o, GroupBarrier& barriers, int room,
                                       int instruction)
        : token{o, instruction},
          barriers(barriers),
          words(o.flagged + (long long)(blockIdx.x / PROCESSORS) * 2 * room),
          rank(this_processor() % PROCESSORS),
          room(room) {}
    __device__ __forceinline__ void send(int at, real x) const {
        const unsigned flag = barriers.flag + 1;
        FlaggedWord* const to = words + (flag & 1) * room + at * EACH;
        if (!token.alive) return;
        const float* const parts = reinterpret_cast<const float*>(&x);
#pragma unroll
        for (int k = 0; k < EACH; ++k) put_flagged(to + k, parts[k], flag);
    }
    // Receive elements 0 to `elements`, an even number: element k belongs at to(k), beside k + 1
    // where k is even. A thread looks for AT_ONCE pairs of words at a time.
    template <class To>
    __device__ __forceinline__ void receive(int elements, To to) {
        constexpr int AT_ONCE = 2, FURTHER = 2 * PROCESSOR;
        const unsigned flag = ++barriers.flag;
        const FlaggedWord* const from = words + (flag & 1) * room;
        const int count = elements * EACH;
        pause();
#pragma unroll 1
        for (int at = 2 * thread; at < count; at += FURTHER * AT_ONCE) {
            TwoFlagged found[AT_ONCE] = {};
            token.wait(
                [&]() {
                    bool all = true;
#pragma unroll
                    for (int k = 0; k < AT_ONCE; ++k)
                        if (at + k * FURTHER < count && !found[k].both(flag))
                            found[k] = get_flagged(from + at + k * FURTHER);
#pragma unroll
                    for (int k = 0; k < AT_ONCE; ++k)
                        all = all && (at + k * FURTHER >= count || found[k].both(flag));
                    return all ? flag : flag - 1;
                },
                flag);
            if (!token.alive) return;
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k) {
                if (at + k * FURTHER >= count) break;
                float* const there = reinterpret_cast<float*>(to((at + k * FURTHER) / EACH));
                there[0] = element_of(found[k].of[0]);
                there[1] = element_of(found[k].of[1]);
            }
        }
    }
    __device__ __forceinline__ void barrier() { meet_in_memory<PROCESSORS>(token, barriers); }
};
