/* UTF-8, one character at a time. */
#ifndef ZF_DATA_UTF8_H
#define ZF_DATA_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The character at p, of which n > 0 bytes are there: writes its code point and returns its length
 * in bytes, or 0 where the bytes are not UTF-8 (RFC 3629: shortest form, no surrogates). */
static inline size_t utf8_decode(const char *p, size_t n, uint32_t *code)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char first = (unsigned char)*p;
    if (first < 0x80) {
        *code = first;
        return 1;
    }
    size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || n < length)
        return 0;
    uint32_t c = first & (0x7Fu >> length);
    for (size_t i = 1; i < length; i++) {
        if (((unsigned char)p[i] & 0xC0) != 0x80)
            return 0;
        c = c << 6 | ((unsigned char)p[i] & 0x3F);
    }
    *code = c;
    return c < least[length] || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000) ? 0 : length;
}

/* Writes a code point below 0x110000 and returns its length, at most 4 bytes. */
static inline size_t utf8_encode(uint32_t code, char *out)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    size_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3F));
    out[0] = (char)(0xF00u >> length | code);
    return length;
}

/* Unicode's White_Space property. */
static inline bool utf8_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

#endif
