/* Host AdamW with AVX-512: 16 elements at a time. Limit: the memory's bandwidth at 28 (bf16) or 32
 * (fp32) bytes per element, of which the commit writes 2 or 4. */
#include "offload/host/adam_kernels.h"

#ifdef __x86_64__
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))

AVX512 static inline void prefetch(const void *ahead)
{
    _mm_prefetch((const char *)ahead, _MM_HINT_T0);
}

/* Sixteen new masters. */
AVX512 static inline __m512 adam_sixteen(__m512 p, float *m, float *v, __m512 x,
                                         const struct adam_constants *c)
{
    __m512 m1 = _mm512_loadu_ps(m), v1 = _mm512_loadu_ps(v);
    prefetch(m + ADAM_AHEAD);
    prefetch(v + ADAM_AHEAD);
    __m512 g = _mm512_fmadd_ps(_mm512_set1_ps(c->l2), p,
                               _mm512_mul_ps(_mm512_set1_ps(c->gradient_scale), x));
    m1 = _mm512_fmadd_ps(_mm512_set1_ps(c->beta1), m1, _mm512_mul_ps(_mm512_set1_ps(c->rest1), g));
    v1 = _mm512_fmadd_ps(_mm512_set1_ps(c->beta2), v1,
                         _mm512_mul_ps(_mm512_mul_ps(_mm512_set1_ps(c->rest2), g), g));
    __m512 denominator = _mm512_fmadd_ps(_mm512_sqrt_ps(v1), _mm512_set1_ps(c->inverse_root2),
                                         _mm512_set1_ps(c->eps));
    p = _mm512_fmadd_ps(_mm512_set1_ps(-c->step), _mm512_div_ps(m1, denominator),
                        _mm512_mul_ps(p, _mm512_set1_ps(c->decay)));
    _mm512_storeu_ps(m, m1);
    _mm512_storeu_ps(v, v1);
    return p;
}

/* Sixteen halves as the upper ones of as many words. */
AVX512 static inline __m512i load_upper(const uint16_t *halves)
{
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)halves)),
                             16);
}

/* As bf16_master. */
AVX512 static inline __m512 load_masters(const uint16_t *parameters, const int16_t *remainders)
{
    __m512i low = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)remainders));
    return _mm512_castsi512_ps(_mm512_add_epi32(load_upper(parameters), low));
}

/* As bf16_parameter. */
AVX512 static inline void store_parameters(uint16_t *parameters, __m512 p)
{
    __m512i bits = _mm512_add_epi32(_mm512_castps_si512(p), _mm512_set1_epi32(0x8000));
    __mmask16 nan = _mm512_cmp_ps_mask(p, p, _CMP_UNORD_Q);
    if (__builtin_expect(nan, 0))
        bits = _mm512_mask_mov_epi32(bits, nan, _mm512_set1_epi32(0x7fc00000));
    _mm256_storeu_si256((__m256i *)parameters, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
}

AVX512 static inline void store_remainders(int16_t *remainders, __m512 p)
{
    _mm256_storeu_si256((__m256i *)remainders, _mm512_cvtepi32_epi16(_mm512_castps_si512(p)));
}

AVX512 void adam_avx512_bf16(const void *parameters, int16_t *remainders, float *m, float *v,
                             void *exchange, size_t n, const struct adam_constants *c)
{
    const struct adam_constants constants = *c;
    const uint16_t *old = parameters;
    uint16_t *bf16 = exchange;
    for (size_t line = 0; line < n; line += 32) {
        prefetch(old + line + ADAM_AHEAD);
        prefetch(remainders + line + ADAM_AHEAD);
        prefetch(bf16 + line + ADAM_AHEAD);
        for (size_t i = line; i < line + 32; i += 16) {
            __m512 p = load_masters(old + i, remainders + i);
            __m512 x = _mm512_castsi512_ps(load_upper(bf16 + i));
            p = adam_sixteen(p, m + i, v + i, x, &constants);
            store_parameters(bf16 + i, p);
            store_remainders(remainders + i, p);
        }
    }
}

AVX512 void adam_avx512_f32(const void *parameters, int16_t *remainders, float *m, float *v,
                            void *exchange, size_t n, const struct adam_constants *c)
{
    (void)remainders;
    const struct adam_constants constants = *c;
    const float *old = parameters;
    float *f32 = exchange;
    for (size_t i = 0; i < n; i += 16) {
        prefetch(old + i + ADAM_AHEAD);
        prefetch(f32 + i + ADAM_AHEAD);
        __m512 p = _mm512_loadu_ps(old + i), x = _mm512_loadu_ps(f32 + i);
        _mm512_storeu_ps(f32 + i, adam_sixteen(p, m + i, v + i, x, &constants));
    }
}
#endif
