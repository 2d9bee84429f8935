"""Native code: loops of Python, translated to LLVM, compiled and kept."""
