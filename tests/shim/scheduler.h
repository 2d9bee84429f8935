// The scheduler: the threads of a launch take turns as fibers. One launch runs at a time.
//
// A worker fiber starts threads one after the other, as plain calls. When one has to wait, its
// fiber stays with it and the scheduler goes on in another: one that may go on, or a worker for
// threads not yet started. So a kernel that never waits runs in one fiber, and costs its calls.
//
// With seed 0 threads and blocks run in order, and each as far as it can. Any other seed draws the
// order, lets single warps run ahead, and interrupts threads at atomics and fences.
#pragma once
#include <stdio.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "fiber.h"
#include "matrix_unit.h"
#include "shim.h"

namespace shim {

Running* running;
dim3 grid_size, block_size;

namespace {

constexpr int INVALID_VALUE = 1, OUT_OF_MEMORY = 2, ILLEGAL_ADDRESS = 700, TOO_MANY_THREADS = 701,
              LAUNCH_FAILED = 719;
constexpr unsigned WARP = 32, MAX_THREADS = 1024, MAX_SHARED = 227 << 10, MAX_PARAMETERS = 32764;
constexpr unsigned SHARED_ALIGN = 128;  // of dynamic shared memory, bytes
constexpr unsigned GUARD_BYTES = 64;    // behind dynamic shared memory: to find writes past it
constexpr unsigned char GUARD = 0xa5, UNWRITTEN = 0xff;
constexpr unsigned IDLE_ROUNDS = 1000;  // in which all threads only poll, before that is an error
constexpr unsigned THREADS_SHOWN = 8;

struct Block;
struct Warp;

struct Thread : Running {
    Block* in;
    Warp* warp;
    Fiber* fiber;
    Call call;  // what it waits in
};

// The lanes that have arrived at one exchange; they agree in its mask. It is kept at the lane that
// was first, since parts of a warp may be in different ones.
struct Exchange {
    unsigned mask, arrived;
    const char* what;
};

struct Warp {
    unsigned live;  // lanes that have not ended
    unsigned open;  // lanes at which an exchange is kept
    Exchange exchange[WARP];
    Thread* thread[WARP];
    unsigned long long value[WARP], result[WARP];
    unsigned source[WARP];
};

struct Block {
    uint3 index;
    unsigned number, started, live;
    bool waited;  // some thread has waited for another
    bool leaves;  // its cluster
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    std::vector<unsigned> order;        // of starting; empty: as numbered
    std::vector<Thread*> ready;         // may go on, from `first_ready` on
    size_t first_ready;
    std::vector<Thread*> at_barrier, asleep;
    std::vector<char> saved;            // static shared memory while other blocks run
    std::vector<unsigned char> dynamic;  // dynamic shared memory, and the guard
};

// The launch in progress; there is one at a time.
const Kernel* kernel;
const void* parameters;
char* shared;  // static shared memory of the module in this host thread
size_t shared_bytes, dynamic_bytes;
bool shared_is_used;  // since it was filled
Block* in_turn;
unsigned favourite, restless;  // a seeded order prefers a warp, until one of `restless` draws
int failure;
unsigned long progress;
unsigned long long seed_given, random_state;

unsigned draw(unsigned below) {  // xorshift64*
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (unsigned)((random_state * 0x2545F4914F6CDD1DULL >> 32) % below);
}

void draw_order(std::vector<unsigned>& order, unsigned count) {
    order.resize(count);
    std::iota(order.begin(), order.end(), 0u);
    for (unsigned i = count; i > 1; --i) std::swap(order[i - 1], order[draw(i)]);
}

// Where the dynamic shared memory of a block begins: the next multiple of 128 bytes.
unsigned char* dynamic_of(Block& b) {
    unsigned char* const memory = b.dynamic.data();
    return memory + (0 - reinterpret_cast<size_t>(memory)) % SHARED_ALIGN;
}

// The blocks that have begun and not ended, by number.
std::vector<Block*> blocks;

Thread* current() { return static_cast<Thread*>(running); }

const char* base_name(const char* file) {
    const char* slash = strrchr(file, '/');
    return slash ? slash + 1 : file;
}

void show(const Thread& t) {
    fprintf(stderr, "  block (%u, %u, %u), thread (%u, %u, %u): %s, %s:%d\n", t.block.x, t.block.y,
            t.block.z, t.thread.x, t.thread.y, t.thread.z, t.call.what, base_name(t.call.file),
            t.call.line);
}

// --- fibers

void wait_in(const Call& call) {
    Thread* const t = current();
    t->call = call;
    leave(t->fiber);
    running = t;
}

void end_thread(Thread* t);

Thread* start_thread(Block& b) {
    const unsigned k = b.started++, i = b.order.empty() ? k : b.order[k];
    Thread& t = b.threads[i];
    if (block_size.y == 1 && block_size.z == 1) {
        t.thread = {i, 0, 0};
    } else {
        const unsigned row = i / block_size.x;
        t.thread = {i % block_size.x, row % block_size.y, row / block_size.y};
    }
    t.block = b.index;
    t.lane = i % WARP;
    t.in = &b;
    t.warp = &b.warps[i / WARP];
    return &t;
}

void work() {
    Fiber* const self = entering;
    for (;;) {
        Block& b = *in_turn;
        do {
            Thread* const t = start_thread(b);
            t->fiber = self;
            running = t;
            kernel->call(parameters);
            end_thread(t);
        } while (b.started < b.threads.size() && (seed_given == 0 || draw(2)));
        free_fibers.push_back(self);
        leave(self);
    }
}

// --- waiting

void release_barrier(Block& b) {
    ++progress;
    for (Thread* t : b.at_barrier) {
        if (t != running) b.ready.push_back(t);
    }
    b.at_barrier.clear();
}

// Compute a product of matrices of those lanes that have arrived.
void multiply(Warp& w, unsigned arrived) {
    Fragments* of[WARP] = {};
    for (unsigned lane = 0; lane < WARP; ++lane) {
        if (arrived >> lane & 1) of[lane] = reinterpret_cast<Fragments*>(w.value[lane]);
    }
    multiply_fragments(of);
}

// End an exchange when all lanes of its mask that live have arrived.
bool end_exchange(Block& b, Warp& w, unsigned kept_at) {
    const Exchange& x = w.exchange[kept_at];
    const unsigned arrived = x.arrived;
    if (arrived != (x.mask & w.live)) return false;
    ++progress;
    if (w.source[kept_at] == PRODUCT) multiply(w, arrived);
    unsigned long long votes = 0;
    for (unsigned lane = 0; lane < WARP; ++lane) {
        if (arrived >> lane & 1 && w.value[lane]) votes |= 1ULL << lane;
    }
    for (unsigned lane = 0; lane < WARP; ++lane) {
        if (!(arrived >> lane & 1)) continue;
        const unsigned from = w.source[lane];
        if (from >= ALL) {
            w.result[lane] = votes;
        } else {
            w.result[lane] = from < WARP && arrived >> from & 1 ? w.value[from] : ~0ULL;
        }
        if (w.thread[lane] != running) b.ready.push_back(w.thread[lane]);
    }
    w.open &= ~(1u << kept_at);
    return true;
}

void end_thread(Thread* t) {
    Block& b = *t->in;
    Warp& w = *t->warp;
    ++progress;
    --b.live;
    w.live &= ~(1u << t->lane);
    running = nullptr;
    if (b.live > 0 && b.at_barrier.size() == b.live) release_barrier(b);
    for (unsigned open = w.open; open; open &= open - 1) {
        end_exchange(b, w, (unsigned)__builtin_ctz(open));
    }
}

void perhaps_give_way(const Call& call) {
    if (seed_given == 0 || draw(2)) return;
    in_turn->ready.push_back(current());
    wait_in(call);
}

// --- blocks

Thread* pick(Block& b) {
    const size_t count = b.ready.size() - b.first_ready;
    if (count == 0) {
        b.ready.clear();
        b.first_ready = 0;
        return nullptr;
    }
    if (seed_given == 0) return b.ready[b.first_ready++];
    size_t k = draw((unsigned)count);
    if (draw(restless)) {
        size_t at = k;
        for (size_t i = 0; i < count; ++i, at = at + 1 < count ? at + 1 : 0) {
            if ((unsigned)(b.ready[at]->warp - b.warps.data()) == favourite) {
                k = at;
                break;
            }
        }
    }
    Thread* const t = b.ready[k];
    favourite = (unsigned)(t->warp - b.warps.data());
    b.ready[k] = b.ready.back();
    b.ready.pop_back();
    return t;
}

void begin_block(Block& b, unsigned number) {
    const unsigned threads = block_size.x * block_size.y * block_size.z;
    const unsigned row = number / grid_size.x;
    b.index = {number % grid_size.x, row % grid_size.y, row / grid_size.y};
    b.number = number;
    b.started = 0;
    b.live = threads;
    b.waited = false;
    b.leaves = false;
    b.threads.resize(threads);
    b.warps.resize((threads + WARP - 1) / WARP);
    for (size_t k = 0; k < b.warps.size(); ++k) {
        const unsigned lanes = std::min(WARP, threads - (unsigned)k * WARP);
        b.warps[k].live = lanes == WARP ? ~0u : (1u << lanes) - 1;
        b.warps[k].open = 0;
    }
    b.order.clear();
    if (seed_given) draw_order(b.order, threads);
    b.ready.clear();
    b.first_ready = 0;
    b.at_barrier.clear();
    b.asleep.clear();
    b.saved.clear();
    b.dynamic.assign(dynamic_bytes + GUARD_BYTES + SHARED_ALIGN, UNWRITTEN);
    memset(dynamic_of(b) + dynamic_bytes, GUARD, GUARD_BYTES);
    if (shared_is_used) memset(shared, UNWRITTEN, shared_bytes);
    shared_is_used = false;
    blocks[number] = &b;
}

bool guard_is_whole(Block& b) {
    const unsigned char* const guard = dynamic_of(b) + dynamic_bytes;
    return std::all_of(guard, guard + GUARD_BYTES, [](unsigned char x) { return x == GUARD; });
}

void report(Block& b, const char* what) {
    fprintf(stderr, "[cuda shim] kernel %s: %s\n", kernel->name, what);
    unsigned count = 0;
    for (unsigned k = 0; k < b.started; ++k) {
        Thread& t = b.threads[b.order.empty() ? k : b.order[k]];
        if (!(t.warp->live >> t.lane & 1)) continue;
        if (count++ < THREADS_SHOWN) show(t);
    }
    if (count > THREADS_SHOWN) fprintf(stderr, "  and %u more\n", count - THREADS_SHOWN);
    fflush(stderr);
    failure = LAUNCH_FAILED;
}

// Run a block until each of its threads has ended or sleeps, or waits for one that does.
void run_block(Block& b) {
    in_turn = &b;
    if (!b.saved.empty()) memcpy(shared, b.saved.data(), shared_bytes);
    while (!failure) {
        const bool more = b.started < b.threads.size();
        Thread* const t = more && seed_given && draw(4) == 0 ? nullptr : pick(b);
        if (t) {
            enter(t->fiber, work);
        } else if (more) {
            Fiber* const fiber = free_fiber();
            if (!fiber) {
                failure = OUT_OF_MEMORY;
                return;
            }
            enter(fiber, work);
        } else {
            break;
        }
    }
    if (failure) return;
    if (b.live > 0 && b.asleep.empty()) {
        report(b, "deadlock: no thread of a block can go on; these wait:");
    } else if (b.live == 0 && !guard_is_whole(b)) {
        fprintf(stderr, "[cuda shim] kernel %s: block (%u, %u, %u) wrote past ", kernel->name,
                b.index.x, b.index.y, b.index.z);
        fprintf(stderr, "its %zu bytes of dynamic shared memory\n", dynamic_bytes);
        fflush(stderr);
        failure = ILLEGAL_ADDRESS;
    }
    shared_is_used |= b.waited;
    if (b.live > 0) {
        b.saved.assign(shared, shared + shared_bytes);
    } else {
        blocks[b.number] = nullptr;
    }
}

// Start all blocks, then go round those that have not ended. Blocks are kept for the next launch.
std::vector<Block*> idle_blocks;

void run_blocks(std::vector<Block*>& active) {
    const unsigned count = grid_size.x * grid_size.y * grid_size.z;
    std::vector<unsigned> order;
    if (seed_given) draw_order(order, count);
    blocks.assign(count, nullptr);
    for (unsigned k = 0; k < count && !failure; ++k) {
        if (idle_blocks.empty()) idle_blocks.push_back(new Block);
        Block* const b = idle_blocks.back();
        begin_block(*b, order.empty() ? k : order[k]);
        run_block(*b);
        if (b->live == 0) continue;
        idle_blocks.pop_back();
        active.push_back(b);
    }
    for (unsigned idle = 0; !active.empty() && !failure;) {
        const unsigned long before = progress;
        if (seed_given) {
            for (size_t i = active.size(); i > 1; --i) {
                std::swap(active[i - 1], active[draw((unsigned)i)]);
            }
        }
        for (size_t k = 0; k < active.size() && !failure; ++k) {
            Block& b = *active[k];
            b.ready.insert(b.ready.end(), b.asleep.begin(), b.asleep.end());
            b.asleep.clear();
            run_block(b);
            if (b.live > 0) continue;
            idle_blocks.push_back(&b);
            active.erase(active.begin() + (long)k--);
        }
        idle = progress == before ? idle + 1 : 0;
        if (idle > IDLE_ROUNDS && !failure) {
            report(*active[0], "deadlock: all poll and nothing changes; these of one block wait:");
        }
    }
    idle_blocks.insert(idle_blocks.end(), active.begin(), active.end());
}

}  // namespace
}  // namespace shim
