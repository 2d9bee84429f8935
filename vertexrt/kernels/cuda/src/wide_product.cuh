// A product of many rows for warp groups, and what of it each block makes.
#pragma once
#include "warp_groups.cuh"

// An operand [rows, deep] in memory; if it lies along its rows, these are columns there. `pitch`:
// from one row to the next or, along rows, from one step of the depth to the next.
struct Factor {
    const float* first;
    long long pitch, rows;
};

// c(i, j) = sum over k of a(i, k) b(j, k), or c += it if it `adds`. Row i of c begins at
// to + i pitch. There are `down` tiles down, and `across` tiles across. Sizes and pitches in the
// direction of neighbours in memory are multiples of `vector`, 1, 2 or 4, and so are addresses.
// Where several `splits` share the depth of a tile, they leave their sums in `partial`, and
// `arrived` counts them: an int for each tile, zero before and after.
struct WideProduct {
    Factor a, b;
    float* to;
    long long pitch, deep, down, across, splits, vector, adds;
    float* partial;
    int* arrived;
};

// What a block makes: a tile, or its share of the depth of one. All blocks have every gridDim.x-th
// of these; neighbours have one tile of b.
struct Place {
    int number, i0, j0, k, end;  // it begins at row i0, column j0 and step k of the depth

    __device__ __forceinline__ Place(const WideProduct& p, int number) : number(number) {
        const int tiles = (int)(p.down * p.across), tile = number % tiles, split = number / tiles;
        const int chunks = ((int)p.deep + DEPTH - 1) / DEPTH, splits = (int)p.splits;
        i0 = tile % (int)p.down * MATMUL_DOWN, j0 = tile / (int)p.down * MATMUL_ACROSS;
        k = chunks * split / splits * DEPTH;
        end = chunks * (split + 1) / splits * DEPTH;
        end = end < (int)p.deep ? end : (int)p.deep;
    }
    static __device__ __forceinline__ int all(const WideProduct& p) {
        return (int)(p.down * p.across * p.splits);
    }
};
