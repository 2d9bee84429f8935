// Cells: what a group of processors runs on the path.
//
// A *cell* is generated from the task program of one kind of rows (`cell_text.py`): constexpr facts
// and scalar expressions. A level runs a cell on a few rows. A cell is one or more *stages*;
// between two of them the group meets:
//
//     products     of vectors that lie on chip by weights that the processor holds
//     elements     scalar expressions of the own units of each row
//     exchange     own units of some vectors are sent to all members
//
// What lies on chip while a side of the path runs:
//
//     state places   of rows: the vectors that parents read in full, and own units of others
//     edge places    own units of what a row leaves for its child, read by the child's row
//     buffers        vectors of the rows of a level, from one stage to the next, two in turn
//     operands       what is read from memory, copied some levels ahead: own units for expressions,
//                    and in full for products
//
// The members of a group follow one script, made of words of 16 bytes:
//
//     {LEVEL | cell << 8, rows | sent << 8 | words << 16, times, stride} {children, edges, pairs,
//     above}
//         a row: {row, place, first edge, first child | children << 16 | parents << 24}, all rows;
//             back, `place` is where its parents are among the pairs
//         pairs {row, place}: the children of all rows, then of each row {edge, place} of its
//             parents and, if the side reads it, {edge, 0} of its parent in a layer above
//     {TAKE, rows, now, 0}   pairs {row, place}: states from memory, there three levels later or
//     now {LEAVE, edges, 0, 0}   pairs {edge, place}: what parents left in memory {MEET, 0, 0, 0}
//     wait for all writes of the group to memory {NEXT, at, words, 0}   the script goes on there
//     {END, 0, 0, 0}
//
// `sent` rows, the first ones, have a place. A level may be repeated: then rows, children and edges
// are `stride`, `children` and `edges` further each time (`pairs` are children, `above` is of
// edges), and the places of child and row (back, of child and parent) take turns. Place 0 holds
// zeros.
#pragma once
#include "cell_reads.cuh"
#include "cell_unit.cuh"

// The machine of a side. `Side_` has the facts, the weights and the cells of the side.
template <class Side_>
struct CellMachine : CellReads<Side_> {
    using Side = Side_;
    using Reads = CellReads<Side>;
    using U = typename Reads::U;
    using Reads::ahead, Reads::look_ahead, Reads::fetch, Reads::fetch_more;
    using Reads::operands, Reads::reads, Reads::edge_reads, Reads::full_reads, Reads::buffer;
    using Reads::OWN, Reads::ON_CHIP, Reads::OPERANDS, Reads::words, Reads::channel, Reads::script;
    static constexpr int PROCESSORS = Side::PROCESSORS;
    static constexpr Scope SCOPE = scope_of(PROCESSORS);
    using Weights = typename Side::Weights;

    Weights& held;
    real *parameters, *staged, *staged_edges, *carried, *buffers, *edge_buffers, *folds;
    real *edge_folds, *partial, *edges, *states;
    const ScriptWord* const memory;
    int at = 0, parity = 0;
    bool after_one = false;  // the last level was one row
    real scale = 1;          // of the loss

    // Shared memory from `free` on; `fixed_bytes` of cell_text.py counts the same.
    __device__ __forceinline__ CellMachine(const Orders& o, const long long* words, Weights& held,
                                           unsigned char* free, GroupBarrier& barriers,
                                           const ScriptWord* memory, int instruction)
        : Reads(o, words, barriers, instruction), held(held), memory(memory) {
        script = take<ScriptWord>(free, CELL_PIECE);
        operands = take<CellOperand>(free, Side::CELLS * OPERANDS);
        parameters = take<real>(free, Side::PARAMETERS * ON_CHIP);
        reads = take<real>(free, CELL_BUFFERS * Side::ROWS * Side::READS * OWN);
        edge_reads = take<real>(free, CELL_BUFFERS * Side::EDGES * Side::EDGE_READS * OWN);
        full_reads = take<real>(free, CELL_BUFFERS * Side::ROWS * Side::FULL_READS * ON_CHIP);
        staged_edges = take<real>(free, Side::EDGES * Side::STAGED_EDGES * OWN);
        edge_buffers = take<real>(free, 2 * Side::EDGES * Side::EXCHANGED_EDGES * ON_CHIP);
        staged = take<real>(free, Side::ROWS * Side::STAGED * OWN);
        carried = take<real>(free, Side::ROWS * Side::CARRIED * OWN);
        buffers = take<real>(free, 2 * Side::ROWS * Side::EXCHANGED * ON_CHIP);
        folds = take<real>(free, Side::ROWS * Side::FOLDS);
        edge_folds = take<real>(free, Side::EDGES * Side::EDGE_FOLDS);
        partial = take<real>(free, Side::PARTIAL);
        edges = take<real>(free, Side::EDGE_PLACES * Side::LEFT * OWN);
        states = take<real>(free, Side::STATE_PLACES * Side::STATE);
        clear(staged, Side::ROWS * Side::STAGED * OWN);
        clear(staged_edges, Side::EDGES * Side::STAGED_EDGES * OWN);
        if (!U::WHOLE) clear(edge_buffers, 2 * Side::EDGES * Side::EXCHANGED_EDGES * ON_CHIP);
        clear(edges, Side::EDGE_PLACES > 0 ? Side::LEFT * OWN : 0);
        clear(states,
              U::WHOLE && Side::STATE_PLACES > 0 ? Side::STATE : Side::STATE_PLACES * Side::STATE);
        if (!U::WHOLE) clear(buffers, 2 * Side::ROWS * Side::EXCHANGED * ON_CHIP);
        if (!U::WHOLE) clear(full_reads, CELL_BUFFERS * Side::ROWS * Side::FULL_READS * ON_CHIP);
        if (Side::SCALE >= 0)
            scale =
                real(*reinterpret_cast<const double*>(words[Side::SCALE >= 0 ? Side::SCALE : 0]));
        Side::find_operands(*this);
    }
    template <class T>
    static __device__ __forceinline__ T* take(unsigned char*& free, int count) {
        T* const found = reinterpret_cast<T*>(free);
        free += (count * sizeof(T) + 15) / 16 * 16;
        return found;
    }
    static __device__ __forceinline__ void clear(real* from, int count) {
        for (int k = this_thread(); k < count; k += PROCESSOR) from[k] = 0;
    }
    // For the tables of a side: a parameter.
    __device__ __forceinline__ void parameter(int n, int word, int start) {
        const real* const from = reinterpret_cast<const real*>(words[word]) + start;
        for (int c = this_thread(); c < ON_CHIP; c += PROCESSOR)
            parameters[n * ON_CHIP + c] = U::element(c) >= 0 ? from[U::element(c)] : real(0);
    }

    // Vectors on chip that products read: of a child, from memory, and of the row in this stage's
    // buffer.
    template <class Rows>
    __device__ __forceinline__ const real* state(const Rows& rows, int i, int slot, int v) const {
        return states + rows.child(i, slot).place * Side::STATE + v * ON_CHIP;
    }
    __device__ __forceinline__ const real* sent(int i, int v) const {
        return buffers + ((parity * Side::ROWS + i) * Side::EXCHANGED + v) * ON_CHIP;
    }

    // A number of a row, or of an edge, made of all elements of vectors: of each by a warp.
    __device__ __forceinline__ real* folded(int i, int n) const {
        return folds + i * Side::FOLDS + n;
    }
    __device__ __forceinline__ real* edge_folded(int edge, int n) const {
        return edge_folds + edge * Side::EDGE_FOLDS + n;
    }
    template <class Fold, int VECTORS, class X>
    __device__ __forceinline__ void fold(int count, real* to, int pitch, X x) {
        const int lane = this_thread() % 32;
#pragma unroll 1
        for (int i = this_thread() / 32; i < count; i += PROCESSOR / 32) {
            const auto row = x(i);
            Fold all;
#pragma unroll 1
            for (int c = 4 * lane; c < VECTORS * ON_CHIP; c += 4 * 32) {
                const Vec<4> v = quartet(row, c);
#pragma unroll
                for (int k = 0; k < 4; ++k)
                    if (U::element((c + k) % ON_CHIP) >= 0) all.add(v.v[k]);
            }
            const real found = all.template of<32>();
            if (lane == 0) to[i * pitch] = found;
        }
    }
    static __device__ __forceinline__ Vec<4> quartet(const real* row, int c) {
        return load<4>(row + c);
    }
    template <class Row>
    static __device__ __forceinline__ Vec<4> quartet(const Row& row, int c) {
        return row(c);
    }

    // Load the first piece of the script, of so many words, and let others send from now on: with
    // the grid, if that is waited for, else after a barrier of the group.
    __device__ __forceinline__ void open(int count, bool waits) {
        for (int k = this_thread(); k < count; k += PROCESSOR) script[k] = memory[k];
        if (waits) {
            come_to_grid(channel.token.o);
        } else {
            channel.barrier();
        }
    }
    // The same of an edge of the level: of its child, and in this stage's buffer.
    template <class Rows>
    __device__ __forceinline__ const real* edge_state(const Rows& rows, int edge, int v) const {
        return states + rows.child(0, edge).place * Side::STATE + v * ON_CHIP;
    }
    __device__ __forceinline__ const real* edge_sent(int edge, int v) const {
        return edge_buffers + ((parity * Side::EDGES + edge) * Side::EXCHANGED_EDGES + v) * ON_CHIP;
    }

    // Follow the script; false when a wait ran out.
    __device__ __forceinline__ bool follow() {
        begin_piece();
        for (;;) {
            const LevelWords level(script + at);
            const ScriptWord head = level.head;
            if ((head.x & 0xff) == CELL_LEVEL) {
                at += level.size();
                Side::run(*this, head.x >> 8, level);
                continue;
            }
            after_one = false;
            if (head.x == CELL_TAKE) {
                take_states(head.y, head.z);
            } else if (head.x == CELL_LEAVE) {
                take_edges(head.y);
            } else if (head.x == CELL_MEET) {
                channel.barrier();
                ++at;
            } else if (head.x == CELL_NEXT) {
                load_piece(head.y, head.z);
            } else {
                break;
            }
        }
        wait_for_copies<0>();
        int& alive = shared_state().turn.alive;
        if (this_thread() == 0) alive = 1;
        __syncthreads();
        if (!channel.token.alive) alive = 0;
        __syncthreads();
        return alive;
    }
    __device__ __forceinline__ void load_piece(int from, int count) {
        wait_for_copies<0>();
        __syncthreads();  // the last piece is no longer read
        for (int k = this_thread(); k < count; k += PROCESSOR) script[k] = memory[from + k];
        __syncthreads();
        begin_piece();
    }
    __device__ __forceinline__ void begin_piece() {
        at = ahead = 0;
        look_ahead();
        for (int k = 0; k < CELL_AHEAD; ++k) {
            fetch((buffer + k) % CELL_BUFFERS);
            fetch_more((buffer + k) % CELL_BUFFERS);
        }
        wait_for_copies<0>();
        __syncthreads();
    }

    // A level, and again as often as it is repeated.
    template <class Cell>
    __device__ __forceinline__ void levels(const LevelWords& level) {
        if (level.count() == 1) {
            repeat<Cell>(OneRow_<Cell::SLOTS, Cell::CHAIN>(level), 1, level);
        } else {
            repeat<Cell>(FewRows_<Cell::SLOTS, Cell::CHAIN>(level), level.count(), level);
        }
    }
    template <class Cell, class Rows>
    __device__ __forceinline__ void repeat(Rows rows, int count, const LevelWords& level) {
#pragma unroll 1
        for (int times = level.head.z;;) {
            Cell::run(*this, rows, count, level.more.z, level.sent());
            buffer = (buffer + 1) % CELL_BUFFERS;
            if (--times == 0) break;
            rows.template next<Side::BACK>(level.head.w, level.more.x, level.more.y);
        }
    }

    template <class Cell, class Stage, bool FIRST, bool LAST, class Rows>
    __device__ __forceinline__ void stage(const Rows& rows, int count, int edge_count,
                                          int sent_rows) {
        constexpr int VECTORS = Stage::TO_BUFFERS + Stage::TO_STATES + Stage::TO_EDGES;
        // Buffers take turns in levels that meet over them: when a member has met in one, all have
        // read those of the one before.
        if constexpr (FIRST && Cell::EXCHANGED + Cell::EXCHANGED_EDGES > 0)
            if (Cell::EXCHANGED > 0 || edge_count > 0) parity ^= 1;
        if constexpr (Stage::MULTIPLIES) Stage::multiply(*this, rows, count, edge_count);
        // The level's own operands are asked for while the group meets, if it does before the last
        // stage; what has come when this level is over is what the next one reads.
        constexpr int ON_THEIR_WAY = Cell::FETCHES_LAST ? CELL_AHEAD - 2 : CELL_AHEAD - 1;
        if constexpr (LAST && VECTORS == 0) wait_for_copies<ON_THEIR_WAY>();
        channel.thread = this_thread();
        // What a thread reads of its unit after one row it has written itself. But what others have
        // copied for the next level it has not, and they may still send what the last stage staged.
        constexpr bool ALWAYS = Stage::MULTIPLIES || !FIRST || (LAST && VECTORS == 0);
        if (ALWAYS || !(Rows::ONE && after_one)) __syncthreads();
        // By the last threads, which have no units of few rows.
        if constexpr (Stage::FETCHES && Stage::MULTIPLIES)
            fetch((buffer + CELL_AHEAD) % CELL_BUFFERS);
#pragma unroll 1
        for (int at_unit = channel.thread; at_unit < count * OWN; at_unit += PROCESSOR) {
            const int i = Rows::ONE ? 0 : at_unit / OWN, k = Rows::ONE ? at_unit : at_unit % OWN;
            if (k < U::count(channel.rank))
                Stage::elements(Unit<CellMachine, Rows>{*this, rows, i, k});
        }
        if constexpr (VECTORS > 0) {
            if constexpr (LAST) wait_for_copies<ON_THEIR_WAY>();
            __syncthreads();
            if constexpr (SCOPE != ALONE) hand_on<Stage>(rows, count, edge_count, sent_rows);
        }
        if constexpr (Stage::FETCHES) {
            const int into = (buffer + CELL_AHEAD) % CELL_BUFFERS;
            if constexpr (!Stage::MULTIPLIES) fetch(into);
            fetch_more(into);
        }
        channel.thread = this_thread();
        // Products of the next stage, or level, write where this one's sums are read.
        if constexpr (VECTORS == 0 && (!LAST || Side::MULTIPLIES_FIRST)) __syncthreads();
        if constexpr (VECTORS > 0) meet<Stage>(rows, count, edge_count, sent_rows);
        // In a cluster slower threads may still send what others staged.
        if constexpr (LAST)
            after_one = Rows::ONE && OWN <= PROCESSOR && (VECTORS == 0 || SCOPE != CLUSTER);
    }

    // Where a vector of a row is received.
    template <class Stage, class Rows>
    __device__ __forceinline__ real* place_of(const Rows& rows, int i, int v) const {
        if (v < Stage::TO_BUFFERS) return const_cast<real*>(sent(i, Stage::FIRST_BUFFER + v));
        return states + rows.place(i) * Side::STATE +
               (Stage::FIRST_STATE + v - Stage::TO_BUFFERS) * ON_CHIP;
    }
    // Own units of a vector of a row, or of an edge, wait for a barrier to be sent; but alone, a
    // member writes them where they belong.
    template <class Stage, class Rows>
    __device__ __forceinline__ void stage_unit(const Rows& rows, int i, int v, int k,
                                               real x) const {
        if constexpr (SCOPE != ALONE) {
            staged[(i * Side::STAGED + v) * OWN + k] = x;
        } else if (v < Stage::TO_BUFFERS || rows.place(i) > 0) {
            place_of<Stage>(rows, i, v)[k] = x;
        }
    }
    template <class Stage>
    __device__ __forceinline__ void stage_unit_of_edge(int edge, int v, int k, real x) const {
        if constexpr (SCOPE != ALONE) {
            staged_edges[(edge * Side::STAGED_EDGES + v) * OWN + k] = x;
        } else {
            const_cast<real*>(edge_sent(edge, Stage::FIRST_EDGE + v))[k] = x;
        }
    }
    template <class Stage>
    static __device__ __forceinline__ int elements_of(int count, int edge_count, int sent_rows) {
        return (count * Stage::TO_BUFFERS + edge_count * Stage::TO_EDGES +
                sent_rows * Stage::TO_STATES) *
               ON_CHIP;
    }
    template <class Stage, class Rows>
    __device__ __forceinline__ void hand_on(const Rows& rows, int count, int edge_count,
                                            int sent_rows) {
        constexpr int BUFFERS = Stage::TO_BUFFERS, VECTORS = BUFFERS + Stage::TO_STATES;
        if constexpr (VECTORS > 0)
            send_vectors<VECTORS, Rows::ONE>(
                count, [&](int i, int v) { return v < BUFFERS || i < sent_rows; },
                [&](int i, int v) { return staged + (i * Side::STAGED + v) * OWN; },
                [&](int i, int v) { return place_of<Stage>(rows, i, v); },
                [&](int i, int v) {
                    return v < BUFFERS ? i * BUFFERS + v
                                       : count * BUFFERS + i * Stage::TO_STATES + v - BUFFERS;
                });
        if constexpr (Stage::TO_EDGES > 0)
            send_vectors<Stage::TO_EDGES, false>(
                edge_count, [](int, int) { return true; },
                [&](int i, int v) { return staged_edges + (i * Side::STAGED_EDGES + v) * OWN; },
                [&](int i, int v) {
                    return const_cast<real*>(edge_sent(i, Stage::FIRST_EDGE + v));
                },
                [&](int i, int v) {
                    return count * BUFFERS + sent_rows * Stage::TO_STATES + i * Stage::TO_EDGES + v;
                });
    }
    // Send own units of those vectors of rows that goes(row, vector) says: from(row, vector) has
    // them, they are received at to(row, vector), and at(row, vector) says which vector of the
    // meeting each is.
    template <int VECTORS, bool ONE, class Goes, class From, class To, class At>
    __device__ __forceinline__ void send_vectors(int count, Goes goes, From from, To to,
                                                 At at_vector) {
        constexpr int QUADS = OWN / VECTOR;
        if constexpr (SCOPE == CLUSTER) {
            constexpr int SHARE = Channel<PROCESSORS>::SHARE;
#pragma unroll 1
            for (int q = channel.turn(); q < count * VECTORS * QUADS; q += SHARE) {
                const int i = ONE ? 0 : q / (VECTORS * QUADS), v = q / QUADS % VECTORS;
                const int k = q % QUADS * VECTOR;
                if (goes(i, v))
                    channel.send(to(i, v) + channel.rank * OWN + k, load<VECTOR>(from(i, v) + k));
            }
        } else {
#pragma unroll 1
            for (int q = channel.thread; q < count * VECTORS * OWN; q += PROCESSOR) {
                const int i = q / (VECTORS * OWN), v = q / OWN % VECTORS, k = q % OWN;
                if (goes(i, v))
                    channel.send(at_vector(i, v) * ON_CHIP + channel.rank * OWN + k, from(i, v)[k]);
            }
        }
    }
    template <class Stage, class Rows>
    __device__ __forceinline__ void meet(const Rows& rows, int count, int edge_count,
                                         int sent_rows) {
        const int elements = elements_of<Stage>(count, edge_count, sent_rows);
        if constexpr (SCOPE == CLUSTER) {
            if (elements > 0) channel.meet(elements);
        } else if constexpr (SCOPE == GRID) {
            channel.receive(elements, [&](int n) {
                constexpr int BUFFERS = Stage::TO_BUFFERS, STATES = Stage::TO_STATES;
                constexpr int OF_ROW = BUFFERS > 0 ? BUFFERS : 1;
                constexpr int OF_STATE = STATES > 0 ? STATES : 1;
                constexpr int OF_EDGE = Stage::TO_EDGES > 0 ? Stage::TO_EDGES : 1;
                const int vector = n / ON_CHIP, c = n % ON_CHIP;
                if (vector < count * BUFFERS)
                    return place_of<Stage>(rows, vector / OF_ROW, vector % OF_ROW) + c;
                const int left = vector - count * BUFFERS, e = left - sent_rows * STATES;
                if (e < 0)
                    return place_of<Stage>(rows, left / OF_STATE, BUFFERS + left % OF_STATE) + c;
                return const_cast<real*>(edge_sent(e / OF_EDGE, Stage::FIRST_EDGE + e % OF_EDGE)) +
                       c;
            });
            __syncthreads();
        }
    }

    // A warp takes a row, the last ones first: they have no units of few rows.
    __device__ __forceinline__ void take_states(int count, int now) {
        constexpr int TOGETHER = U::TOGETHER, EACH = 32 * TOGETHER;
        const Pair* const pairs = reinterpret_cast<const Pair*>(script + at + 1);
        const int warp = this_thread() / 32, first = this_thread() % 32 * TOGETHER;
        // The last level may still be read; where products come first, it has ended by a barrier.
        if constexpr (!Side::MULTIPLIES_FIRST) __syncthreads();
#pragma unroll 1
        for (int p = WARPS_EACH - 1 - warp; p < count; p += WARPS_EACH) {
            const Pair x = pairs[p];
            real* const to = states + x.place * Side::STATE;
            const auto copy = [&](int v, int at_place, int unit) {
                const real* const from = reinterpret_cast<const real*>(words[Side::state_word(v)]);
                copy_or_zero<TOGETHER>(to + at_place, from + (long long)x.row * U::UNITS + unit,
                                       true);
            };
#pragma unroll
            for (int v = 0; v < Side::SENT; ++v)
#pragma unroll
                for (int c = first; c < ON_CHIP; c += EACH)
                    if (U::element(c) >= 0) copy(v, v * ON_CHIP + c, U::element(c));
#pragma unroll
            for (int v = 0; v < Side::KEPT; ++v)
#pragma unroll
                for (int k = first; k < OWN; k += EACH)
                    if (k < U::count(channel.rank))
                        copy(Side::SENT + v, Side::SENT * ON_CHIP + v * OWN + k,
                             U::first(channel.rank) + k);
        }
        at += 1 + (count + 1) / 2;
        if (now) {
            commit_copies();
            wait_for_copies<0>();
            __syncthreads();
        }
    }
    __device__ __forceinline__ void take_edges(int count) {
        const Pair* const pairs = reinterpret_cast<const Pair*>(script + at + 1);
        __syncthreads();  // what other threads have stored
#pragma unroll 1
        for (int p = this_thread(); p < count * Side::LEFT * OWN; p += PROCESSOR) {
            const Pair x = pairs[p / (Side::LEFT * OWN)];
            const int v = p / OWN % (Side::LEFT > 0 ? Side::LEFT : 1), k = p % OWN;
            if (k >= U::count(channel.rank)) continue;
            const real* const from = reinterpret_cast<const real*>(words[Side::edge_word(v)]);
            edges[(x.place * Side::LEFT + v) * OWN + k] =
                from[(long long)x.row * U::UNITS + U::first(channel.rank) + k];
        }
        at += 1 + (count + 1) / 2;
        __syncthreads();
    }
};
