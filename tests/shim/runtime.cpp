// The library that all modules share: what kernels call of shim.h, and what the host calls in place
// of the CUDA driver and of cuBLAS.
#include <link.h>

#include <mutex>

#include "gemm.h"
#include "scheduler.h"

namespace shim {
namespace {

std::mutex launching;  // held by the launch in progress

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
    const unsigned lane = t->lane;
    unsigned kept_at = lane;
    for (unsigned open = w.open; open; open &= open - 1) {
        const unsigned k = (unsigned)__builtin_ctz(open);
        if (w.exchange[k].mask == mask) kept_at = k;
    }
    Exchange& x = w.exchange[kept_at];
    if (!(w.open >> kept_at & 1)) x = {mask, 0, call.what};
    w.open |= 1u << kept_at;
    in_turn->waited = true;
    const bool alike = x.what == call.what || strcmp(x.what, call.what) == 0;
    if (!(mask >> lane & 1) || !alike) {
        fprintf(stderr, "[cuda shim] %s, mask %08x, lane %u: %s\n", call.what, mask, lane,
                alike ? "the lane is not in its mask" : "other lanes wait in another call");
        fail(LAUNCH_FAILED, call);
    }
    x.arrived |= 1u << lane;
    w.thread[lane] = t;
    w.value[lane] = value;
    w.source[lane] = source;
    if (end_exchange(*in_turn, w, kept_at)) {
        perhaps_give_way(call);
    } else {
        wait_in(call);
    }
    return w.result[lane];
}

void multiply_matrices(float* d, const float* a, float b0, float b1, const float* c, Call call) {
    Fragments f = {{a[0], a[1], a[2], a[3]}, {b0, b1}, {c[0], c[1], c[2], c[3]}};
    exchange(~0u, reinterpret_cast<unsigned long long>(&f), PRODUCT, call);
    std::copy(f.sum, f.sum + 4, d);
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

void* dynamic_shared_of(unsigned block) {
    if (block >= blocks.size() || !blocks[block])
        fail(ILLEGAL_ADDRESS, {"shared memory of a block that does not run", __FILE__, __LINE__});
    return dynamic_of(*blocks[block]);
}

bool all_leave(unsigned first, unsigned count) {
    in_turn->leaves = true;
    for (unsigned k = first; k < first + count; ++k) {
        if (blocks[k] && !blocks[k]->leaves) return false;
    }
    return true;
}

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
    restless = seed_given ? 2u << 3 * draw(3) : 1;
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
                const float* a, int lda, const float* b, int ldb, const float* beta, float* c,
                int ldc) {
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
