/* Host AdamW with AVX2 and FMA: 8 elements at a time. Limit: as host_adam_avx512.c. */
#include "offload/host/adam_kernels.h"

#ifdef __x86_64__
#include <immintrin.h>
#include <stdint.h>

#define AVX2 __attribute__((target("avx2,fma")))

AVX2 static inline void prefetch_ahead(const float *master, const float *m, const float *v)
{
    _mm_prefetch((const char *)(master + ADAM_AHEAD), _MM_HINT_T0);
    _mm_prefetch((const char *)(m + ADAM_AHEAD), _MM_HINT_T0);
    _mm_prefetch((const char *)(v + ADAM_AHEAD), _MM_HINT_T0);
}

AVX2 static inline __m256 adam_eight(float *master, float *m, float *v, __m256 x,
                                     const struct adam_constants *c)
{
    __m256 p = _mm256_loadu_ps(master), m1 = _mm256_loadu_ps(m), v1 = _mm256_loadu_ps(v);
    __m256 g = _mm256_fmadd_ps(_mm256_set1_ps(c->l2), p,
                               _mm256_mul_ps(_mm256_set1_ps(c->gradient_scale), x));
    m1 = _mm256_fmadd_ps(_mm256_set1_ps(c->beta1), m1, _mm256_mul_ps(_mm256_set1_ps(c->rest1), g));
    v1 = _mm256_fmadd_ps(_mm256_set1_ps(c->beta2), v1,
                         _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(c->rest2), g), g));
    __m256 denominator = _mm256_fmadd_ps(_mm256_sqrt_ps(v1), _mm256_set1_ps(c->inverse_root2),
                                         _mm256_set1_ps(c->eps));
    p = _mm256_fmadd_ps(_mm256_set1_ps(-c->step), _mm256_div_ps(m1, denominator),
                        _mm256_mul_ps(p, _mm256_set1_ps(c->decay)));
    _mm256_storeu_ps(master, p);
    _mm256_storeu_ps(m, m1);
    _mm256_storeu_ps(v, v1);
    return p;
}

/* The upper halves are p in bf16, rounded as bf16_from_f32 does, but for NaNs. */
AVX2 static inline __m256i round_eight(__m256 p)
{
    __m256i bits = _mm256_castps_si256(p);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}

AVX2 static inline __m256i replace_nans(__m256i rounded, __m256 p)
{
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(p, p, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), nan);
}

/* Sixteen fp32 to bf16. Packing works within 128-bit lanes; the permutation puts the four quarters
 * in order. */
AVX2 static inline __m256i bf16_from_sixteen(__m256 p0, __m256 p1)
{
    __m256i low = round_eight(p0), high = round_eight(p1);
    if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(p0, p1, _CMP_UNORD_Q)), 0)) {
        low = replace_nans(low, p0);
        high = replace_nans(high, p1);
    }
    __m256i packed = _mm256_packus_epi32(_mm256_srli_epi32(low, 16), _mm256_srli_epi32(high, 16));
    return _mm256_permute4x64_epi64(packed, 0xd8);
}

AVX2 void adam_avx2_bf16(float *master, float *m, float *v, void *exchange, size_t n,
                         const struct adam_constants *c)
{
    const struct adam_constants constants = *c;
    const __m256i zero = _mm256_setzero_si256();
    uint16_t *bf16 = exchange;
    for (size_t i = 0; i < n; i += 16) {
        prefetch_ahead(master + i, m + i, v + i);
        _mm_prefetch((const char *)(bf16 + i + ADAM_AHEAD), _MM_HINT_T0);
        __m256i halves = _mm256_loadu_si256((const __m256i *)(bf16 + i));
        halves = _mm256_permute4x64_epi64(halves, 0xd8);
        __m256 x0 = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, halves));
        __m256 x1 = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, halves));
        __m256 p0 = adam_eight(master + i, m + i, v + i, x0, &constants);
        __m256 p1 = adam_eight(master + i + 8, m + i + 8, v + i + 8, x1, &constants);
        _mm256_storeu_si256((__m256i *)(bf16 + i), bf16_from_sixteen(p0, p1));
    }
}

AVX2 void adam_avx2_f32(float *master, float *m, float *v, void *exchange, size_t n,
                        const struct adam_constants *c)
{
    const struct adam_constants constants = *c;
    float *f32 = exchange;
    for (size_t i = 0; i < n; i += 8) {
        prefetch_ahead(master + i, m + i, v + i);
        _mm_prefetch((const char *)(f32 + i + ADAM_AHEAD), _MM_HINT_T0);
        __m256 x = _mm256_loadu_ps(f32 + i);
        _mm256_storeu_ps(f32 + i, adam_eight(master + i, m + i, v + i, x, &constants));
    }
}
#endif
