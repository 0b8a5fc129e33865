// What this processor can do. Compiled for the oldest processor of its kind: it must run before anything else does.
#include <cstdint>

// 0: none of the compiled variants runs here; 3: x86-64-v3 (AVX2, FMA); 4: x86-64-v4 (AVX-512) too; 1: not x86.
extern "C" int32_t coterie_cpu_level() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2")) return 0;
    bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512vl");
    return wide ? 4 : 3;
#else
    return 1;
#endif
}
