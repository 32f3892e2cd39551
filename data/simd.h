/* ZF_SIMD before a function: compiled for AVX-512, AVX2 and plain x86-64; the loader picks one.
 * Loops inside it vectorise on their own; a sum needs `#pragma omp simd reduction`. */
#ifndef ZF_DATA_SIMD_H
#define ZF_DATA_SIMD_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(ZF_NO_TARGET_CLONES)
#define ZF_SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ZF_SIMD
#endif

#endif
