"""The columns of an instruction of a persistent kernel, and what some of them may hold.

As `Instruction` of processor.cuh has them, int32 [*, COLUMNS]; each kernel asserts how many.
"""

COLUMNS = 20
OP, N, LO, AT, M, ELO, FIRST, CHUNKS, ACROSS, DOWN, WAIT, TEMPORARY, BEFORE = range(13)
PARENTS, FIRST_PARENT = 13, 14
PROGRAM = 15  # of the task programs: for who reads a script, the kernel has no use for it
SLOT, USES, FAR, EXPECT = 16, 17, 18, 19  # of the ring

# OP of the script of all processors; on the path it is the number of a segment.
END, FORWARD, BACKWARD, COLLECT, SQUARES, FINISH, CHECK, UPDATE, FIRST_OP = range(9)
# WAIT: for all that was written, or for rows of the ring alone.
NO_WAIT, FOR_ALL, FOR_RING = range(3)
# USES: what is, or comes, into a tile's rows of the ring.
HAS_OPERAND, IS_SENT, IS_PUT = 1, 2, 4
