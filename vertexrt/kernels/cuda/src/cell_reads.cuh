// What the levels of a side read from memory: copied to shared memory CELL_AHEAD levels ahead.
#pragma once
#include "cell_rows.cuh"

template <class Side>
struct CellReads {
    using U = Units<Side::UNITS, Side::PROCESSORS>;
    static constexpr int OWN = U::OWN, ON_CHIP = U::ON_CHIP;
    static constexpr int OPERANDS = Side::READS + Side::EDGE_READS + Side::FULL_READS;  // of a cell

    const long long* const words;
    Channel<Side::PROCESSORS> channel;
    ScriptWord* script;
    CellOperand* operands;
    real *reads, *edge_reads, *full_reads;
    unsigned buffer = 0;                             // of the level that runs
    int ahead = 0, ahead_left = 0, ahead_count = 0;  // what is fetched next
    int ahead_rows = 0, ahead_children = 0, ahead_above = 0;

    __device__ __forceinline__ CellReads(const Orders& o, const long long* words,
                                         GroupBarrier& barriers, int instruction)
        : words(words), channel(o, barriers, Side::ROOM, instruction) {}
    // For the tables of a side: an operand of a cell (of rows, of edges, then those that are read
    // in full).
    __device__ __forceinline__ void operand(int cell, int n, int word, int width, int start,
                                            int source) {
        if (this_thread() != (cell * OPERANDS + n) % PROCESSOR) return;
        const bool own = n < OPERANDS - Side::FULL_READS && width > 1;
        const int first = start + (own ? U::first(channel.rank) : 0);
        const real* const tensor =
            word < 0 ? nullptr : reinterpret_cast<const real*>(words[word]) + first;
        operands[cell * OPERANDS + n] = {tensor, width, source};
    }
    __device__ __forceinline__ const real* full(int i, int n) const {
        return full_reads + ((buffer * Side::ROWS + i) * Side::FULL_READS + n) * ON_CHIP;
    }

    // Look for the next level whose operands are to be fetched.
    __device__ __forceinline__ void look_ahead() {
        ScriptWord head = script[ahead];
        while (head.x == CELL_TAKE || head.x == CELL_LEAVE || head.x == CELL_MEET) {
            ahead += 1 + (head.x == CELL_MEET ? 0 : (head.y + 1) / 2);
            head = script[ahead];
        }
        ahead_left = (head.x & 0xff) == CELL_LEVEL ? head.z : 0;
        ahead_count = ahead_left > 0 ? head.y & 0xff : 0;
        ahead_rows = ahead_children = ahead_above = 0;
    }
    // The row of an operand's tensor for a row of the level that is fetched; -1 for none.
    __device__ __forceinline__ long long row_of(const CellOperand& x, const ScriptWord& at_row,
                                                const Pair* lists) const {
        const bool own = x.source == OF_ITSELF, above = x.source == OF_ABOVE;
        const int other =
            above ? at_row.y + (int)((unsigned)at_row.w >> 24) : (at_row.w & 0xffff) + x.source;
        const int found = own ? at_row.x : lists[other].row;
        const int further = own ? ahead_rows : above ? ahead_above : ahead_children;
        return found >= 0 ? (long long)found + further : -1;
    }
    // Ask for own units of what the level that is CELL_AHEAD further reads of its rows ...
    __device__ __forceinline__ void fetch(int into) {
        constexpr int TOGETHER = U::TOGETHER, EACH = OWN / TOGETHER, PIECES = Side::READS * EACH;
        static_assert(PIECES > 0, "a side reads something");
        const ScriptWord* const rows = script + ahead + 2;
        const Pair* const lists = reinterpret_cast<const Pair*>(rows + ahead_count);
#pragma unroll 1
        for (int p = PROCESSOR - 1 - channel.thread; p < ahead_count * PIECES; p += PROCESSOR) {
            const int i = p / PIECES, n = p % PIECES / EACH, k = p % EACH * TOGETHER;
            const CellOperand x = operands[(script[ahead].x >> 8) * OPERANDS + n];
            if (x.from == nullptr || k >= U::count(channel.rank)) continue;
            const long long row = row_of(x, rows[i], lists);
            real* const to = reads + ((into * Side::ROWS + i) * Side::READS + n) * OWN;
            if (Side::READS_NUMBERS && x.width == 1) {
                if (k == 0) copy_or_zero<1>(to, x.from + row, true);
                continue;
            }
            copy_or_zero<TOGETHER>(to + k, row >= 0 ? x.from + row * x.width + k : x.from,
                                   row >= 0);
        }
    }
    // ... and for vectors in full and what it reads of edges; go on to the level after it.
    __device__ __forceinline__ void fetch_more(int into) {
        if (ahead_count > 0) {
            const ScriptWord head = script[ahead], more = script[ahead + 1];
            const ScriptWord* const rows = script + ahead + 2;
            const int cell = head.x >> 8;
            if constexpr (Side::FULL_READS > 0) fetch_full(into, cell, rows, ahead_count);
            if constexpr (Side::EDGE_READS > 0) fetch_edges(into, cell, rows, ahead_count, more.z);
            ahead_rows += head.w;
            ahead_children += more.x;
            ahead_above += more.w;
            if (--ahead_left == 0) {
                ahead += head.y >> 16;
                look_ahead();
            }
        }
        commit_copies();
    }

    __device__ __forceinline__ void fetch_full(int into, int cell, const ScriptWord* rows,
                                               int count) {
        constexpr int TOGETHER = U::TOGETHER, EACH = ON_CHIP / TOGETHER, FULL = Side::FULL_READS;
        const Pair* const lists = reinterpret_cast<const Pair*>(rows + count);
#pragma unroll 1
        for (int p = channel.thread; p < count * FULL * EACH; p += PROCESSOR) {
            const int i = p / (FULL * EACH), n = p / EACH % FULL, c = p % EACH * TOGETHER;
            const CellOperand x = operands[cell * OPERANDS + OPERANDS - FULL + n];
            const int unit = U::element(c);
            if (x.from == nullptr || unit < 0) continue;
            const long long row = row_of(x, rows[i], lists);
            copy_or_zero<TOGETHER>(full_reads + ((into * Side::ROWS + i) * FULL + n) * ON_CHIP + c,
                                   row >= 0 ? x.from + row * x.width + unit : x.from, row >= 0);
        }
    }

    // Operands of edges: source -1 for the edge itself, 0 for its child.
    __device__ __forceinline__ void fetch_edges(int into, int cell, const ScriptWord* rows,
                                                int count, int edge_count) {
        constexpr int TOGETHER = U::TOGETHER, EACH = OWN / TOGETHER;
        constexpr int READS = Side::EDGE_READS, PIECES = READS * EACH;
        const Pair* const lists = reinterpret_cast<const Pair*>(rows + count);
#pragma unroll 1
        for (int p = PROCESSOR - 1 - channel.thread; p < edge_count * PIECES; p += PROCESSOR) {
            const int e = p / PIECES, n = p % PIECES / EACH, k = p % EACH * TOGETHER;
            const CellOperand x = operands[cell * OPERANDS + Side::READS + n];
            if (x.from == nullptr || k >= U::count(channel.rank)) continue;
            long long row = lists[e].row;
            if (x.source < 0) {  // edges of a row follow each other
                int i = count - 1;
                while (i > 0 && (rows[i].w & 0xffff) > e) --i;
                row = rows[i].z + e - (rows[i].w & 0xffff);
            }
            real* const to = edge_reads + ((into * Side::EDGES + e) * READS + n) * OWN;
            if (Side::READS_NUMBERS && x.width == 1) {
                if (k == 0) copy_or_zero<1>(to, x.from + row, true);
                continue;
            }
            copy_or_zero<TOGETHER>(to + k, x.from + row * x.width + k, true);
        }
    }
};
