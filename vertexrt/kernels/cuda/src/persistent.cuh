// One kernel for a whole step. Its processors (blocks, one a multiprocessor) follow scripts;
// weights that the path multiplies by stay in registers while a side of the path runs.
//
// - Steps outside the path are launches of the batched engine, whose blocks are distributed over
//   all processors. Barriers over the grid order them.
// - Phases of the path that are cells are run by *groups* of processors, each by its own script,
// the
//   same for all its members: see cell.cuh. The others run in turn, as what is outside the path.
// - Every wait is bounded by a clock. A processor whose wait runs out leaves a record; all
//   processors end, and nothing is updated.
//
// Sources: VPPS (MICRO 2018), sections III-B and III-C; weights in registers, Persistent RNN (ICML
// 2016); rows of a tile by matrix units with three TF32 products (Markidis et al. 2018).
#pragma once
#include "processor.cuh"
#include "products.cuh"
#include "script_loop.cuh"
#include "cell.cuh"
#include "staged_update.cuh"
