// The matrix product in place of cuBLAS's: tiles of rows, and one order of additions.
#pragma once
#include <stddef.h>

#include <algorithm>
#include <vector>

namespace shim {

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
                for (int i = 0; i < count; ++i) {
                    rows[(size_t)l * TILE + i] = a[l + (size_t)(first + i) * lda];
                }
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

}  // namespace shim
