/* Host AdamW with AVX2 and FMA: 8 elements at a time. Limit: as host/adam_avx512.c. */
#include "offload/host/adam_kernels.h"

#ifdef __x86_64__
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,fma")))

AVX2 static inline void prefetch(const void *ahead)
{
    _mm_prefetch((const char *)ahead, _MM_HINT_T0);
}

/* What lies ahead of sixteen elements of m and v. */
AVX2 static inline void prefetch_moments(const float *m, const float *v)
{
    prefetch(m + ADAM_AHEAD);
    prefetch(v + ADAM_AHEAD);
}

/* Eight new masters. */
AVX2 static inline __m256 adam_eight(__m256 p, float *m, float *v, __m256 x,
                                     const struct adam_constants *c)
{
    __m256 m1 = _mm256_loadu_ps(m), v1 = _mm256_loadu_ps(v);
    __m256 g = _mm256_fmadd_ps(_mm256_set1_ps(c->l2), p,
                               _mm256_mul_ps(_mm256_set1_ps(c->gradient_scale), x));
    m1 = _mm256_fmadd_ps(_mm256_set1_ps(c->beta1), m1, _mm256_mul_ps(_mm256_set1_ps(c->rest1), g));
    v1 = _mm256_fmadd_ps(_mm256_set1_ps(c->beta2), v1,
                         _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(c->rest2), g), g));
    __m256 denominator = _mm256_fmadd_ps(_mm256_sqrt_ps(v1), _mm256_set1_ps(c->inverse_root2),
                                         _mm256_set1_ps(c->eps));
    p = _mm256_fmadd_ps(_mm256_set1_ps(-c->step), _mm256_div_ps(m1, denominator),
                        _mm256_mul_ps(p, _mm256_set1_ps(c->decay)));
    _mm256_storeu_ps(m, m1);
    _mm256_storeu_ps(v, v1);
    return p;
}

/* Sixteen halves in the order in which unpacking, which works within 128-bit lanes, gives the first
 * eight words and the last eight; and back. */
AVX2 static inline __m256i load_halves(const void *halves)
{
    return _mm256_permute4x64_epi64(_mm256_loadu_si256(halves), 0xd8);
}

AVX2 static inline void store_halves(void *halves, __m256i packed)
{
    _mm256_storeu_si256(halves, _mm256_permute4x64_epi64(packed, 0xd8));
}

/* -1 where a remainder is negative: what its parameter has more than the master's upper half. */
AVX2 static inline __m256i borrow(__m256i remainders)
{
    return _mm256_srai_epi16(remainders, 15);
}

/* 0x7fc0 where a master is NaN. */
AVX2 static inline __m256i replace_nans(__m256i halves, __m256 p0, __m256 p1)
{
    __m256i nan0 = _mm256_castps_si256(_mm256_cmp_ps(p0, p0, _CMP_UNORD_Q));
    __m256i nan1 = _mm256_castps_si256(_mm256_cmp_ps(p1, p1, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(halves, _mm256_set1_epi16(0x7fc0), _mm256_packs_epi32(nan0, nan1));
}

/* Sixteen masters as bf16_parameter and bf16_remainder take them apart. */
AVX2 static inline void store_masters(uint16_t *parameters, int16_t *remainders, __m256 p0,
                                      __m256 p1)
{
    const __m256i low = _mm256_set1_epi32(0xffff);
    __m256i bits0 = _mm256_castps_si256(p0), bits1 = _mm256_castps_si256(p1);
    __m256i lower = _mm256_packus_epi32(_mm256_and_si256(bits0, low), _mm256_and_si256(bits1, low));
    __m256i upper = _mm256_packus_epi32(_mm256_srli_epi32(bits0, 16), _mm256_srli_epi32(bits1, 16));
    upper = _mm256_sub_epi16(upper, borrow(lower));
    if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(p0, p1, _CMP_UNORD_Q)), 0))
        upper = replace_nans(upper, p0, p1);
    store_halves(parameters, upper);
    store_halves(remainders, lower);
}

AVX2 static inline void update_sixteen(const uint16_t *old, int16_t *remainders, float *m, float *v,
                                       uint16_t *exchange, const struct adam_constants *c)
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i lower = load_halves(remainders), x = load_halves(exchange);
    __m256i upper = _mm256_add_epi16(load_halves(old), borrow(lower));
    __m256 p0 = _mm256_castsi256_ps(_mm256_unpacklo_epi16(lower, upper));
    __m256 p1 = _mm256_castsi256_ps(_mm256_unpackhi_epi16(lower, upper));
    __m256 x0 = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, x));
    __m256 x1 = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, x));
    prefetch_moments(m, v);
    p0 = adam_eight(p0, m, v, x0, c);
    p1 = adam_eight(p1, m + 8, v + 8, x1, c);
    store_masters(exchange, remainders, p0, p1);
}

AVX2 void adam_avx2_bf16(const void *parameters, int16_t *remainders, float *m, float *v,
                         void *exchange, size_t n, const struct adam_constants *c)
{
    const struct adam_constants constants = *c;
    const uint16_t *old = parameters;
    uint16_t *bf16 = exchange;
    for (size_t line = 0; line < n; line += 32) {
        prefetch(old + line + ADAM_AHEAD);
        prefetch(remainders + line + ADAM_AHEAD);
        prefetch(bf16 + line + ADAM_AHEAD);
        for (size_t i = line; i < line + 32; i += 16)
            update_sixteen(old + i, remainders + i, m + i, v + i, bf16 + i, &constants);
    }
}

AVX2 void adam_avx2_f32(const void *parameters, int16_t *remainders, float *m, float *v,
                        void *exchange, size_t n, const struct adam_constants *c)
{
    (void)remainders;
    const struct adam_constants constants = *c;
    const float *old = parameters;
    float *f32 = exchange;
    for (size_t line = 0; line < n; line += 16) {
        prefetch(old + line + ADAM_AHEAD);
        prefetch(f32 + line + ADAM_AHEAD);
        prefetch_moments(m + line, v + line);
        for (size_t i = line; i < line + 16; i += 8) {
            __m256 p = _mm256_loadu_ps(old + i), x = _mm256_loadu_ps(f32 + i);
            _mm256_storeu_ps(f32 + i, adam_eight(p, m + i, v + i, x, &constants));
        }
    }
}
#endif
