// Runs the kernels of shim.h: the threads of a launch take turns as fibers, and stand-ins for what
// the host calls of the CUDA driver and of cuBLAS.
//
// A worker fiber starts threads one after the other, as plain calls. When one has to wait, its fiber
// stays with it and the scheduler goes on in another: one that may go on, or a worker for threads not
// yet started. So a kernel that never waits runs in one fiber, and costs its calls.
//
// With seed 0 threads and blocks run in order, and each as far as it can. Any other seed draws the
// order, lets single warps run ahead, and interrupts threads at atomics and fences.
#include "shim.h"

#include <link.h>
#include <setjmp.h>
#include <stdio.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <vector>

namespace shim {

Running* running;
dim3 grid_size, block_size;

namespace {

constexpr int INVALID_VALUE = 1, OUT_OF_MEMORY = 2, ILLEGAL_ADDRESS = 700, TOO_MANY_THREADS = 701,
              LAUNCH_FAILED = 719;
constexpr unsigned WARP = 32, MAX_THREADS = 1024, MAX_SHARED = 227 << 10, MAX_PARAMETERS = 32764;
constexpr size_t STACK_BYTES = 128 << 10, STACKS_AT_ONCE = 64;
constexpr unsigned GUARD_BYTES = 64;    // behind dynamic shared memory, to find what writes past it
constexpr unsigned char GUARD = 0xa5, UNWRITTEN = 0xff;
constexpr unsigned IDLE_ROUNDS = 1000;  // in which all threads only poll, before that is an error
constexpr unsigned THREADS_SHOWN = 8;

struct Fiber {
    jmp_buf resume;
    char* stack;
    bool fresh;  // it has to be entered by its first function
};

struct Block;
struct Warp;

struct Thread : Running {
    Block* in;
    Warp* warp;
    Fiber* fiber;
    Call call;  // what it waits in
};

// The lanes that have arrived at one exchange; exchanges with disjoint masks may go on side by side,
// and each is kept at the lowest lane of its mask.
struct Exchange {
    unsigned mask, arrived;
    const char* what;
};

struct Warp {
    unsigned live;  // lanes that have not ended
    unsigned open;  // lowest lanes of exchanges that wait
    Exchange exchange[WARP];
    Thread* thread[WARP];
    unsigned long long value[WARP], result[WARP];
    unsigned source[WARP];
};

struct Block {
    uint3 index;
    unsigned started, live;
    bool waited;  // some thread has waited for another
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
std::mutex launching;
const Kernel* kernel;
const void* parameters;
char* shared;  // static shared memory of the module in this host thread
size_t shared_bytes, dynamic_bytes;
bool shared_is_used;  // since it was filled
Block* in_turn;
unsigned favourite;  // the warp that a seeded order prefers
int failure;
unsigned long progress;
unsigned long long seed_given, random_state;

jmp_buf scheduler;
std::vector<Fiber*> all_fibers, free_fibers;
Fiber* entering;

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

// Where the dynamic shared memory of a block begins: the next multiple of 16 bytes.
unsigned char* dynamic_of(Block& b) {
    unsigned char* const memory = b.dynamic.data();
    return memory + (0 - reinterpret_cast<size_t>(memory)) % 16;
}

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

// Leave a fiber; it goes on from here when it is resumed.
__attribute__((noinline)) void leave(Fiber* self) {
    if (!_setjmp(self->resume)) _longjmp(scheduler, 1);
}

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

bool make_fibers() {
    void* const stacks = mmap(nullptr, STACK_BYTES * STACKS_AT_ONCE, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) return false;
    for (size_t k = 0; k < STACKS_AT_ONCE; ++k) {
        Fiber* const fiber = new Fiber;
        fiber->stack = static_cast<char*>(stacks) + k * STACK_BYTES;
        fiber->fresh = true;
        all_fibers.push_back(fiber);
        free_fibers.push_back(fiber);
    }
    return true;
}

// Run a fiber until it leaves.
__attribute__((noinline)) void enter(Fiber* fiber) {
    if (_setjmp(scheduler)) return;
    if (!fiber->fresh) _longjmp(fiber->resume, 1);
    fiber->fresh = false;
    entering = fiber;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber->stack;
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = nullptr;
    makecontext(&context, work, 0);
    setcontext(&context);
}

// After a failure: the threads that still wait will never end, their fibers begin anew.
void take_fibers_back() {
    free_fibers = all_fibers;
    for (Fiber* fiber : all_fibers) fiber->fresh = true;
}

// --- waiting

void release_barrier(Block& b) {
    ++progress;
    for (Thread* t : b.at_barrier) {
        if (t != running) b.ready.push_back(t);
    }
    b.at_barrier.clear();
}

// End an exchange when all lanes of its mask that live have arrived.
bool end_exchange(Block& b, Warp& w, unsigned lowest) {
    Exchange& x = w.exchange[lowest];
    const unsigned arrived = x.arrived;
    if (arrived != (x.mask & w.live)) return false;
    ++progress;
    unsigned long long votes = 0;
    for (unsigned lane = 0; lane < WARP; ++lane) {
        if (arrived >> lane & 1 && w.value[lane]) votes |= 1ULL << lane;
    }
    for (unsigned lane = 0; lane < WARP; ++lane) {
        if (!(arrived >> lane & 1)) continue;
        const unsigned from = w.source[lane];
        if (from == ALL) {
            w.result[lane] = votes;
        } else {
            w.result[lane] = from < WARP && arrived >> from & 1 ? w.value[from] : ~0ULL;
        }
        if (w.thread[lane] != running) b.ready.push_back(w.thread[lane]);
    }
    x.arrived = 0;
    w.open &= ~(1u << lowest);
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
        const unsigned lowest = (unsigned)__builtin_ctz(open);
        if (w.exchange[lowest].arrived) end_exchange(b, w, lowest);
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
    if (draw(8)) {
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
    b.started = 0;
    b.live = threads;
    b.waited = false;
    b.threads.resize(threads);
    b.warps.resize((threads + WARP - 1) / WARP);
    for (size_t k = 0; k < b.warps.size(); ++k) {
        const unsigned lanes = std::min(WARP, threads - (unsigned)k * WARP);
        b.warps[k].live = lanes == WARP ? ~0u : (1u << lanes) - 1;
        b.warps[k].open = 0;
        for (Exchange& x : b.warps[k].exchange) x.arrived = 0;
    }
    b.order.clear();
    if (seed_given) draw_order(b.order, threads);
    b.ready.clear();
    b.first_ready = 0;
    b.at_barrier.clear();
    b.asleep.clear();
    b.saved.clear();
    b.dynamic.assign(dynamic_bytes + GUARD_BYTES + 16, UNWRITTEN);
    memset(dynamic_of(b) + dynamic_bytes, GUARD, GUARD_BYTES);
    if (shared_is_used) memset(shared, UNWRITTEN, shared_bytes);
    shared_is_used = false;
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
            enter(t->fiber);
        } else if (more) {
            if (free_fibers.empty() && !make_fibers()) {
                failure = OUT_OF_MEMORY;
                return;
            }
            Fiber* const fiber = free_fibers.back();
            free_fibers.pop_back();
            enter(fiber);
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
    if (b.live > 0) b.saved.assign(shared, shared + shared_bytes);
}

// Start all blocks, then go round those that have not ended. Blocks are kept for the next launch.
std::vector<Block*> idle_blocks;

void run_blocks(std::vector<Block*>& active) {
    const unsigned count = grid_size.x * grid_size.y * grid_size.z;
    std::vector<unsigned> order;
    if (seed_given) draw_order(order, count);
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
            for (size_t i = active.size(); i > 1; --i) std::swap(active[i - 1], active[draw((unsigned)i)]);
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
            report(*active[0], "deadlock: all threads poll and nothing changes; these of one block wait:");
        }
    }
    idle_blocks.insert(idle_blocks.end(), active.begin(), active.end());
}

// Find the thread-local storage of a module: its size, and how much of it is in front of the mark.
void find_shared(Module& module) {
    module.mark();  // now this host thread has it
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* data) {
            Module& module = *static_cast<Module*>(data);
            const char* const mark = module.mark();
            const char* const begin = static_cast<char*>(info->dlpi_tls_data);
            for (int k = 0; begin && k < info->dlpi_phnum; ++k) {
                const auto& part = info->dlpi_phdr[k];
                if (part.p_type != PT_TLS || mark < begin || mark >= begin + part.p_memsz) continue;
                module.before = (unsigned long)(mark - begin);
                module.size = part.p_memsz;
                return 1;
            }
            return 0;
        },
        &module);
}

}  // namespace

// --- what kernels call

void block_barrier(Call call) {
    Block& b = *in_turn;
    b.waited = true;
    b.at_barrier.push_back(current());
    if (b.at_barrier.size() == b.live) {
        release_barrier(b);
        perhaps_give_way(call);
    } else {
        wait_in(call);
    }
}

unsigned long long exchange(unsigned mask, unsigned long long value, unsigned source, Call call) {
    Thread* const t = current();
    Warp& w = *t->warp;
    const unsigned lane = t->lane, lowest = (unsigned)__builtin_ctz(mask | 1u << 31);
    Exchange& x = w.exchange[lowest];
    in_turn->waited = true;
    const bool alike = !x.arrived || (x.mask == mask && strcmp(x.what, call.what) == 0);
    if (!(mask >> lane & 1) || !alike) {
        fprintf(stderr, "[cuda shim] %s, mask %08x, lane %u: %s\n", call.what, mask, lane,
                alike ? "the lane is not in its mask" : "other lanes wait in another call");
        fail(LAUNCH_FAILED, call);
    }
    x.mask = mask;
    x.what = call.what;
    x.arrived |= 1u << lane;
    w.thread[lane] = t;
    w.value[lane] = value;
    w.source[lane] = source;
    w.open |= 1u << lowest;
    if (end_exchange(*in_turn, w, lowest)) {
        perhaps_give_way(call);
    } else {
        wait_in(call);
    }
    return w.result[lane];
}

void sleep(Call call) {
    in_turn->waited = true;
    in_turn->asleep.push_back(current());
    wait_in(call);
}

void atomic_done(bool changed, Call call) {
    progress += changed;
    if (!changed || (seed_given && draw(4) == 0)) sleep(call);
}

void* dynamic_shared() { return dynamic_of(*in_turn); }

void fail(int code, Call call) {
    Thread* const t = current();
    t->call = call;
    failure = code;
    fprintf(stderr, "[cuda shim] kernel %s: error %d\n", kernel->name, code);
    show(*t);
    fflush(stderr);
    leave(t->fiber);
    __builtin_unreachable();
}

namespace {

// What the host gave as `extra`: a buffer with the parameter, and its size.
bool read_parameters(void** extra, unsigned bytes) {
    alignas(64) static char buffer[MAX_PARAMETERS];
    const void* from = nullptr;
    size_t size = 0;
    for (; extra && extra[0]; extra += 2) {
        const size_t key = reinterpret_cast<size_t>(extra[0]);
        if (key == 1) from = extra[1];
        if (key == 2) size = *static_cast<const size_t*>(extra[1]);
    }
    if (!from || size < bytes || bytes > MAX_PARAMETERS) return false;
    memcpy(buffer, from, bytes);
    parameters = buffer;
    return true;
}

void use_shared(Module& module) {
    if (module.size == 0) find_shared(module);
    char* const begin = module.mark() - module.before;
    shared_is_used |= begin != shared || module.size != shared_bytes;
    shared = begin;
    shared_bytes = module.size;
}

// C = alpha op(A) op(B) + beta C, matrices by columns. Every element is added up in the order of k.
template <class T>
int gemm(int trans_a, int trans_b, int m, int n, int k, T alpha, const T* a, int lda, const T* b,
         int ldb, T beta, T* c, int ldc) {
    constexpr int TILE = 64;
    const bool turned = trans_a != 0;
    if (m < 0 || n < 0 || k < 0 || lda < std::max(1, turned ? k : m) ||
        ldb < std::max(1, trans_b ? n : k) || ldc < std::max(1, m)) {
        return 7;  // CUBLAS_STATUS_INVALID_VALUE
    }
    std::vector<T> rows(turned ? (size_t)TILE * k : 0);
    for (int first = 0; first < m; first += TILE) {
        const int count = std::min(TILE, m - first);
        const T* tile = a + first;
        size_t stride = (size_t)lda;
        if (turned) {
            for (int l = 0; l < k; ++l) {
                for (int i = 0; i < count; ++i) rows[(size_t)l * TILE + i] = a[l + (size_t)(first + i) * lda];
            }
            tile = rows.data();
            stride = TILE;
        }
        for (int j = 0; j < n; ++j) {
            T sum[TILE] = {};
            for (int l = 0; l < k; ++l) {
                const T y = trans_b ? b[j + (size_t)l * ldb] : b[l + (size_t)j * ldb];
                const T* const x = tile + (size_t)l * stride;
                for (int i = 0; i < count; ++i) sum[i] += x[i] * y;
            }
            T* const to = c + first + (size_t)j * ldc;
            for (int i = 0; i < count; ++i) {
                to[i] = beta == T(0) ? alpha * sum[i] : alpha * sum[i] + beta * to[i];
            }
        }
    }
    return 0;
}

}  // namespace
}  // namespace shim

// --- what the host calls

#pragma GCC visibility push(default)
extern "C" {

// As cuLaunchKernel, with the parameter in `extra`; `function` is a shim::Kernel.
int shim_launch(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                unsigned block_y, unsigned block_z, unsigned shared_bytes, void*, void** values,
                void** extra) {
    using namespace shim;
    const std::lock_guard<std::mutex> alone(launching);
    kernel = static_cast<const Kernel*>(function);
    const unsigned long long threads = 1ULL * block_x * block_y * block_z;
    if (!kernel || values || !grid_x || !grid_y || !grid_z || grid_y > 65535 || grid_z > 65535 ||
        !threads || threads > MAX_THREADS || shared_bytes > MAX_SHARED ||
        !read_parameters(extra, kernel->parameter_bytes)) {
        return INVALID_VALUE;
    }
    if (threads > kernel->threads) return TOO_MANY_THREADS;
    grid_size = {grid_x, grid_y, grid_z};
    block_size = {block_x, block_y, block_z};
    dynamic_bytes = shared_bytes;
    use_shared(*kernel->module);
    random_state = seed_given * 0x9E3779B97F4A7C15ULL + 1;
    favourite = 0;
    failure = 0;
    std::vector<Block*> active;
    run_blocks(active);
    if (failure) {
        take_fibers_back();
        shared_is_used = true;
    }
    return failure;
}

// As cublasSgemm_v2 and cublasDgemm_v2.
int shim_gemm32(void*, int trans_a, int trans_b, int m, int n, int k, const float* alpha,
                const float* a, int lda, const float* b, int ldb, const float* beta, float* c, int ldc) {
    return shim::gemm(trans_a, trans_b, m, n, k, *alpha, a, lda, b, ldb, *beta, c, ldc);
}
int shim_gemm64(void*, int trans_a, int trans_b, int m, int n, int k, const double* alpha,
                const double* a, int lda, const double* b, int ldb, const double* beta, double* c,
                int ldc) {
    return shim::gemm(trans_a, trans_b, m, n, k, *alpha, a, lda, b, ldb, *beta, c, ldc);
}

// As cuMemsetD8Async.
int shim_memset(unsigned long long to, unsigned char value, size_t count, void*) {
    memset(reinterpret_cast<void*>(to), value, count);
    return 0;
}

// Choose the order of the threads of later launches.
void shim_seed(unsigned long long seed) {
    const std::lock_guard<std::mutex> alone(shim::launching);
    shim::seed_given = seed;
}
}
#pragma GCC visibility pop
