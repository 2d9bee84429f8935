// What the expressions of a cell see of a row.
#pragma once
#include "cell_functions.cuh"
#include "cell_rows.cuh"

// One unit of one row, as the expressions of a cell see it.
template <class Machine, class Rows>
struct Unit {
    using S = typename Machine::Side;
    using U = typename Machine::U;
    const Machine& m;
    const Rows& rows;
    int i, k;

    // An element of a product: piece of own rows, of product row `of` of `times` for this row.
    template <int MOST, int ROWS, int DEEP>
    __device__ __forceinline__ real sum(int at, int times, int of, int piece) const {
        return total_of_parts<1, MOST, ROWS, DEEP>(m.partial + at, i * times + of,
                                                   piece * U::MOST + k)
            .v[0];
    }
    __device__ __forceinline__ real read(int n) const {
        return m.reads[((m.buffer * S::ROWS + i) * S::READS + n) * U::OWN + k];
    }
    __device__ __forceinline__ real read_number(int n) const {
        return m.reads[((m.buffer * S::ROWS + i) * S::READS + n) * U::OWN];
    }
    __device__ __forceinline__ real folded(int n) const { return *m.folded(i, n); }
    // The same of edges: of child c of the row.
    template <int MOST, int ROWS, int DEEP>
    __device__ __forceinline__ real edge_sum(int at, int c, int piece) const {
        return total_of_parts<1, MOST, ROWS, DEEP>(m.partial + at, rows.first_child(i) + c,
                                                   piece * U::MOST + k)
            .v[0];
    }
    __device__ __forceinline__ real edge_read(int n, int c) const {
        const int edge = m.buffer * S::EDGES + rows.first_child(i) + c;
        return m.edge_reads[(edge * S::EDGE_READS + n) * U::OWN + k];
    }
    __device__ __forceinline__ real edge_read_number(int n, int c) const {
        const int edge = m.buffer * S::EDGES + rows.first_child(i) + c;
        return m.edge_reads[(edge * S::EDGE_READS + n) * U::OWN];
    }
    __device__ __forceinline__ real edge_folded(int n, int c) const {
        return *m.edge_folded(rows.first_child(i) + c, n);
    }
    __device__ __forceinline__ int children() const { return rows.children(i); }
    // How many there are, at least 1.
    __device__ __forceinline__ real degree() const {
        int found = 0;
        for (int c = 0; c < children(); ++c) found += present(c);
        return real(found > 0 ? found : 1);
    }
    // To be sent: vector v of the stage, of the row or of an edge.
    template <class Stage>
    __device__ __forceinline__ void send(int v, real x) const {
        m.template stage_unit<Stage>(rows, i, v, k, x);
    }
    template <class Stage>
    __device__ __forceinline__ void send_edge(int c, int v, real x) const {
        m.template stage_unit_of_edge<Stage>(rows.first_child(i) + c, v, k, x);
    }
    __device__ __forceinline__ real parameter(int n) const {
        return m.parameters[n * U::ON_CHIP + m.channel.rank * U::OWN + k];
    }
    __device__ __forceinline__ bool present(int slot) const { return rows.child(i, slot).row >= 0; }
    // Of a child: a vector that was sent, or own units that its owner kept.
    __device__ __forceinline__ real state(int slot, int v) const {
        return m.states[rows.child(i, slot).place * S::STATE + v * U::ON_CHIP +
                        m.channel.rank * U::OWN + k];
    }
    __device__ __forceinline__ real kept(int slot, int v) const {
        return m
            .states[rows.child(i, slot).place * S::STATE + S::SENT * U::ON_CHIP + v * U::OWN + k];
    }
    __device__ __forceinline__ void keep(int v, real x) const {
        const int place = rows.place(i);
        if (place > 0) m.states[place * S::STATE + S::SENT * U::ON_CHIP + v * U::OWN + k] = x;
    }
    // What the parents of the row left for it, in the order of the script.
    __device__ __forceinline__ real from_parents(int v) const {
        real sum = 0;
        const int count = rows.parents(i);
        if (count > 0) sum = m.edges[(rows.parent(i, 0) * S::LEFT + v) * U::OWN + k];
#pragma unroll 1
        for (int p = 1; p < count; ++p)
            sum += m.edges[(rows.parent(i, p) * S::LEFT + v) * U::OWN + k];
        return sum;
    }
    __device__ __forceinline__ void leave(int slot, int v, real x) const {
        const int place = rows.child(i, slot).place;
        if (place > 0) m.edges[(place * S::LEFT + v) * U::OWN + k] = x;
    }
    __device__ __forceinline__ real weight(int word) const {
        return reinterpret_cast<const real*>(m.words[word])[rows.row(i)];
    }
    // What the row itself hands from stage to stage.
    __device__ __forceinline__ real carried(int n) const {
        return m.carried[(i * S::CARRIED + n) * U::OWN + k];
    }
    __device__ __forceinline__ void carry(int n, real x) const {
        m.carried[(i * S::CARRIED + n) * U::OWN + k] = x;
    }
    // To memory, where rows of a tensor have `width` elements.
    __device__ __forceinline__ void store(int word, int width, int start, real x) const {
        real* const tensor = reinterpret_cast<real*>(m.words[word]);
        tensor[(long long)rows.row(i) * width + start + U::first(m.channel.rank) + k] = x;
    }
    // Numbers are known to all, and stored by the thread of the first unit.
    __device__ __forceinline__ bool first_unit() const { return U::first(m.channel.rank) + k == 0; }
    __device__ __forceinline__ void store_number(int word, real x) const {
        if (first_unit()) reinterpret_cast<real*>(m.words[word])[rows.row(i)] = x;
    }
    __device__ __forceinline__ void store_edge(int word, int width, int start, int c,
                                               real x) const {
        real* const tensor = reinterpret_cast<real*>(m.words[word]);
        tensor[(long long)(rows.edge(i) + c) * width + start + U::first(m.channel.rank) + k] = x;
    }
    __device__ __forceinline__ void store_edge_number(int word, int c, real x) const {
        if (first_unit()) reinterpret_cast<real*>(m.words[word])[rows.edge(i) + c] = x;
    }
    __device__ __forceinline__ void store_for_child(int word, int width, int slot, real x) const {
        if (!present(slot)) return;
        real* const tensor = reinterpret_cast<real*>(m.words[word]);
        tensor[(long long)(rows.edge(i) + slot) * width + U::first(m.channel.rank) + k] = x;
    }
};
