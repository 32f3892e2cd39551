/* Host AdamW with AVX-512: 16 elements at a time. Limit: the memory's bandwidth at 28 (bf16) or 32
 * (fp32) bytes per element. */
#include "offload/host/adam_kernels.h"

#ifdef __x86_64__
#include <immintrin.h>
#include <stdint.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))

AVX512 static inline void prefetch_ahead(const float *master, const float *m, const float *v)
{
    _mm_prefetch((const char *)(master + ADAM_AHEAD), _MM_HINT_T0);
    _mm_prefetch((const char *)(m + ADAM_AHEAD), _MM_HINT_T0);
    _mm_prefetch((const char *)(v + ADAM_AHEAD), _MM_HINT_T0);
}

AVX512 static inline __m512 adam_sixteen(float *master, float *m, float *v, __m512 x,
                                         const struct adam_constants *c)
{
    __m512 p = _mm512_loadu_ps(master), m1 = _mm512_loadu_ps(m), v1 = _mm512_loadu_ps(v);
    __m512 g = _mm512_fmadd_ps(_mm512_set1_ps(c->l2), p,
                               _mm512_mul_ps(_mm512_set1_ps(c->gradient_scale), x));
    m1 = _mm512_fmadd_ps(_mm512_set1_ps(c->beta1), m1, _mm512_mul_ps(_mm512_set1_ps(c->rest1), g));
    v1 = _mm512_fmadd_ps(_mm512_set1_ps(c->beta2), v1,
                         _mm512_mul_ps(_mm512_mul_ps(_mm512_set1_ps(c->rest2), g), g));
    __m512 denominator = _mm512_fmadd_ps(_mm512_sqrt_ps(v1), _mm512_set1_ps(c->inverse_root2),
                                         _mm512_set1_ps(c->eps));
    p = _mm512_fmadd_ps(_mm512_set1_ps(-c->step), _mm512_div_ps(m1, denominator),
                        _mm512_mul_ps(p, _mm512_set1_ps(c->decay)));
    _mm512_storeu_ps(master, p);
    _mm512_storeu_ps(m, m1);
    _mm512_storeu_ps(v, v1);
    return p;
}

/* Rounds as bf16_from_f32 does; the processor's own conversion would flush denormals. */
AVX512 static inline __m256i bf16_from_sixteen(__m512 p)
{
    const __m512i even = _mm512_set1_epi32(0x7fff), odd = _mm512_set1_epi32(0x8000);
    __m512i bits = _mm512_castps_si512(p);
    __mmask16 is_odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    bits = _mm512_add_epi32(bits, _mm512_mask_mov_epi32(even, is_odd, odd));
    __mmask16 nan = _mm512_cmp_ps_mask(p, p, _CMP_UNORD_Q);
    if (__builtin_expect(nan, 0))
        bits = _mm512_mask_mov_epi32(bits, nan, _mm512_set1_epi32(0x7fc00000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
}

AVX512 void adam_avx512_bf16(float *master, float *m, float *v, void *exchange, size_t n,
                             const struct adam_constants *c)
{
    const struct adam_constants constants = *c;
    uint16_t *bf16 = exchange;
    for (size_t i = 0; i < n; i += 16) {
        prefetch_ahead(master + i, m + i, v + i);
        _mm_prefetch((const char *)(bf16 + i + ADAM_AHEAD), _MM_HINT_T0);
        __m256i half = _mm256_loadu_si256((const __m256i *)(bf16 + i));
        __m512 x = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
        __m512 p = adam_sixteen(master + i, m + i, v + i, x, &constants);
        _mm256_storeu_si256((__m256i *)(bf16 + i), bf16_from_sixteen(p));
    }
}

AVX512 void adam_avx512_f32(float *master, float *m, float *v, void *exchange, size_t n,
                            const struct adam_constants *c)
{
    const struct adam_constants constants = *c;
    float *f32 = exchange;
    for (size_t i = 0; i < n; i += 16) {
        prefetch_ahead(master + i, m + i, v + i);
        _mm_prefetch((const char *)(f32 + i + ADAM_AHEAD), _MM_HINT_T0);
        __m512 x = _mm512_loadu_ps(f32 + i);
        _mm512_storeu_ps(f32 + i, adam_sixteen(master + i, m + i, v + i, x, &constants));
    }
}
#endif
