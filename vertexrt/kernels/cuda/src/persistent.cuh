// One kernel for a whole step. Its processors (blocks, one a multiprocessor) follow scripts;
// weights that the path multiplies by stay in their registers while a side of the path runs.
//
// - Steps beside the path are launches of the batched engine, whose blocks take turns on all
//   processors. They are ordered by barriers over the grid.
// - On the path each *group* of processors has its own script, the same for all its members: an
//   instruction is a segment on a tile of rows, of which each member makes its units.
// - Every wait is bounded by a clock. Who gives up leaves a record, everybody ends, and nothing is
//   updated.
//
// Sources: VPPS (MICRO 2018), sections III-B and III-C; weights in registers, Persistent RNN (ICML
// 2016); rows of a tile by matrix units with three TF32 products (Markidis et al. 2018).
#pragma once
#include "processor.cuh"
#include "few_rows_matmul.cuh"
#include "resident_matmul.cuh"
#include "tiled_matmul.cuh"
#include "script_loop.cuh"
#include "weight_gradients.cuh"
