// Sigmoid and tanh of cells: ex2 and rcp, without branches.
#pragma once
#include "row_ops.cuh"

__device__ __forceinline__ float power_of_two(float x) {
#ifdef __CUDACC_RTC__
    float found;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
    return found;
#else
    return exp2f(x);
#endif
}
__device__ __forceinline__ float reciprocal(float x) {
#ifdef __CUDACC_RTC__
    float found;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
    return found;
#else
    return 1.0f / x;
#endif
}

constexpr float LOG2_E = 1.4426950408889634, LOG2_E_REST = 1.4426950408889634 - (double)LOG2_E;
constexpr float LN_2 = 0.6931471805599453;

// 1 / (1 + e^-x). What the exponent of ex2 loses by rounding, some multiple of x, is made up for
// while ex2 is under way: 1 + e^-x is 1 + ex2(t) (1 + ln 2 rest).
__device__ __forceinline__ float cell_sigmoid(float x) {
    const float t = x * -LOG2_E;
    const float rest = fmaf(x, -LOG2_E_REST, fmaf(x, -LOG2_E, -t));
    const float more = fabsf(t) < 150.0f ? fmaf(rest, LN_2, 1.0f) : 1.0f;  // not of infinity
    return reciprocal(fmaf(power_of_two(t), more, 1.0f));
}
__device__ __forceinline__ double cell_sigmoid(double x) { return vrt_sigmoid(x); }

// x + x^3 p(x^2) below 1, where 1 - 2 / (1 + e^2x) would lose digits; both are computed.
__device__ __forceinline__ float cell_tanh(float x) {
    const float square = x * x;
    float p = 0.0010582646f;
    p = fmaf(p, square, -0.0062593394f);
    p = fmaf(p, square, 0.02035976f);
    p = fmaf(p, square, -0.053498708f);
    p = fmaf(p, square, 0.1332641f);
    p = fmaf(p, square, -0.33332986f);
    const float near = fmaf(p * square, x, x);
    const float power = power_of_two(fabsf(x) * (2 * LOG2_E));
    const float far = copysignf(fmaf(-2.0f, reciprocal(1.0f + power), 1.0f), x);
    return fabsf(x) < 1.0f ? near : far;
}
__device__ __forceinline__ double cell_tanh(double x) { return vrt_tanh(x); }
