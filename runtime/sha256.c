// SHA-256: see sha256.h. On x86 processors with SHA instructions those are used: checkpoints are hashed
// whole, and the plain code would take longer than writing them.
#include "runtime/sha256.h"
#include "runtime/file.h"
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

static const uint32_t round_constant[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

// One round; the caller renames the eight variables instead of moving their values.
#define ROUND(a, b, c, d, e, f, g, h, i)                                                                     \
    do {                                                                                                     \
        uint32_t t = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + (g ^ (e & (f ^ g))) +              \
                     round_constant[i] + w[i];                                                               \
        d += t;                                                                                              \
        h = t + (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) | (c & (a | b)));                  \
    } while (0)

static void blocks_plain(uint32_t s[8], const uint8_t *p, size_t n) {
    for (; n; n--, p += 64) {
        uint32_t w[64];
        uint32_t a = s[0], b = s[1], c = s[2], d = s[3], e = s[4], f = s[5], g = s[6], h = s[7];
        for (int i = 0; i < 16; i++)
            w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 |
                   (uint32_t)p[4 * i + 3];
        for (int i = 16; i < 64; i++) {
            uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
            uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
            w[i] = w[i - 16] + s0 + w[i - 7] + s1;
        }
        for (int i = 0; i < 64; i += 8) {
            ROUND(a, b, c, d, e, f, g, h, i);
            ROUND(h, a, b, c, d, e, f, g, i + 1);
            ROUND(g, h, a, b, c, d, e, f, i + 2);
            ROUND(f, g, h, a, b, c, d, e, i + 3);
            ROUND(e, f, g, h, a, b, c, d, i + 4);
            ROUND(d, e, f, g, h, a, b, c, i + 5);
            ROUND(c, d, e, f, g, h, a, b, i + 6);
            ROUND(b, c, d, e, f, g, h, a, i + 7);
        }
        s[0] += a, s[1] += b, s[2] += c, s[3] += d, s[4] += e, s[5] += f, s[6] += g, s[7] += h;
    }
}

#ifdef __x86_64__
static bool has_sha(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1);
}

// The instructions keep the state as (a,b,e,f) and (c,d,g,h), and do two rounds each.
__attribute__((target("sha,sse4.1,ssse3"))) static void blocks_sha(uint32_t s[8], const uint8_t *p,
                                                                   size_t n) {
    const __m128i flip = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const void *)s), 0xB1);
    __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const void *)(s + 4)), 0x1B);
    __m128i abef = _mm_alignr_epi8(abcd, efgh, 8), cdgh = _mm_blend_epi16(efgh, abcd, 0xF0);
    for (; n; n--, p += 64) {
        __m128i m[4], abef0 = abef, cdgh0 = cdgh;
        for (int i = 0; i < 4; i++)
            m[i] = _mm_shuffle_epi8(_mm_loadu_si128((const void *)(p + 16 * i)), flip);
        for (int i = 0; i < 16; i++) {
            __m128i k = _mm_add_epi32(m[i & 3], _mm_loadu_si128((const void *)(round_constant + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, k);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(k, 0x0E));
            __m128i next = _mm_add_epi32(_mm_sha256msg1_epu32(m[i & 3], m[(i + 1) & 3]),
                                         _mm_alignr_epi8(m[(i + 3) & 3], m[(i + 2) & 3], 4));
            m[i & 3] = _mm_sha256msg2_epu32(next, m[(i + 3) & 3]);
        }
        abef = _mm_add_epi32(abef, abef0);
        cdgh = _mm_add_epi32(cdgh, cdgh0);
    }
    __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128((void *)s, _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128((void *)(s + 4), _mm_alignr_epi8(dchg, feba, 8));
}
#endif

static void blocks_add(Sha256 *s, const uint8_t *p, size_t n) {
#ifdef __x86_64__
    if (!s->plain && has_sha()) {
        blocks_sha(s->h, p, n);
        return;
    }
#endif
    blocks_plain(s->h, p, n);
}

void sha256_init(Sha256 *s) {
    *s = (Sha256){.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab,
                        0x5be0cd19}};
}

void sha256_add(Sha256 *s, const void *data, size_t n) {
    const uint8_t *p = data;
    size_t have = s->bytes % 64;
    s->bytes += n;
    while (n) {
        if (have == 0 && n >= 64) {
            blocks_add(s, p, n / 64);
            p += n / 64 * 64;
            n %= 64;
            continue;
        }
        size_t take = MIN_OF(64 - have, n);
        memcpy(s->block + have, p, take);
        p += take, n -= take, have += take;
        if (have == 64) {
            blocks_add(s, s->block, 1);
            have = 0;
        }
    }
}

void sha256_hex(const Sha256 *s, char out[65]) {
    Sha256 end = *s;
    uint8_t pad[72] = {0x80};
    size_t n = (s->bytes % 64 < 56 ? 56 : 120) - s->bytes % 64;
    for (int i = 0; i < 8; i++)
        pad[n + (size_t)i] = (uint8_t)(s->bytes * 8 >> (56 - 8 * i));
    sha256_add(&end, pad, n + 8);
    for (size_t i = 0; i < 8; i++)
        snprintf(out + 8 * i, 9, "%08x", (unsigned)end.h[i]);
}

Status sha256_file(const char *path, char out[65], uint64_t *bytes) {
    enum { CHUNK = 1 << 18 };
    File f;
    TRY(file_open(path, &f));
    uint8_t *buffer = mem_alloc(CHUNK);
    Status s = buffer ? STATUS_OK : status_memory("a read buffer", CHUNK);
    Sha256 sum;
    sha256_init(&sum);
    size_t got = 1;
    while (!s.code && got) {
        s = file_read_some(&f, sum.bytes, buffer, CHUNK, &got);
        sha256_add(&sum, buffer, got);
    }
    mem_free(buffer);
    file_close(&f);
    sha256_hex(&sum, out);
    *bytes = sum.bytes;
    return s;
}
