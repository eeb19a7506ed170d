// Vectors of float, pairs of bfloat16 and quads of bytes, for AVX-512 with bf16 and VNNI and for AVX2.
//
// Everything that depends on the instruction set is in this file and in tiles.h; the compiler's -m flags decide which
// of the two sets is used. GCC and clang give __m512 and __m256 the arithmetic operators.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <limits>

namespace baton {

using bf16 = uint16_t;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline float to_float(bf16 value) {
  uint32_t bits = static_cast<uint32_t>(value) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

#if defined(__AVX512BF16__)

using Floats = __m512;
constexpr int kFloats = 16;

inline Floats set(float value) { return _mm512_set1_ps(value); }
inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
inline void store(float* to, Floats x) { _mm512_storeu_ps(to, x); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }  // b where one is NaN
inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }  // b where one is NaN
inline Floats where_at_least(Floats x, Floats least, Floats value) {  // elsewhere, and where x is NaN, 0
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, least, _CMP_GE_OQ), value);
}
inline bool any_above(Floats x, Floats limit) { return _mm512_cmp_ps_mask(x, limit, _CMP_GT_OQ) != 0; }
inline bool any_equal(Floats x, Floats y) { return _mm512_cmp_ps_mask(x, y, _CMP_EQ_OQ) != 0; }
inline float sum(Floats x) { return _mm512_reduce_add_ps(x); }
inline float max_of(Floats x) { return _mm512_reduce_max_ps(x); }

inline Floats load_bf16(const bf16* from) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline void store_bf16(bf16* to, Floats x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
}

// 2^exponent * x for whole exponents; nothing overflows on the way to a result that does not.
inline Floats scale_by_power(Floats x, Floats exponent) { return _mm512_scalef_ps(x, exponent); }
inline Floats round_to_int(Floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

// kFloats lanes of two bf16 each: what one vdpbf16ps multiplies.
using Pairs = __m512bh;
using PairBits = __m512i;  // as they lie in memory
inline PairBits low_pairs(PairBits a, PairBits b) { return _mm512_unpacklo_epi32(a, b); }
inline PairBits high_pairs(PairBits a, PairBits b) { return _mm512_unpackhi_epi32(a, b); }
inline PairBits low_twos(PairBits a, PairBits b) { return _mm512_unpacklo_epi64(a, b); }
inline PairBits high_twos(PairBits a, PairBits b) { return _mm512_unpackhi_epi64(a, b); }
inline Pairs widen_pairs(__m512i bits) { return reinterpret_cast<Pairs>(bits); }
inline Pairs load_pairs(const bf16* from) { return reinterpret_cast<Pairs>(_mm512_loadu_si512(from)); }
inline Pairs broadcast_pair(const bf16* from) {
  int32_t pair;
  std::memcpy(&pair, from, sizeof(pair));
  return reinterpret_cast<Pairs>(_mm512_set1_epi32(pair));
}
inline Floats dot(Floats sums, Pairs a, Pairs b) { return _mm512_dpbf16_ps(sums, a, b); }

// kFloats lanes of an int32, and of four bytes each: what one vpdpbusd multiplies, unsigned by signed. (Sums in a
// __m512i would change their type with each product, and GCC would move them about.)
using Ints = int32_t __attribute__((vector_size(64)));
struct UnsignedQuads {
  __m512i bytes;
};
struct SignedQuads {
  __m512i bytes;
};
inline Ints set_ints(int32_t value) { return reinterpret_cast<Ints>(_mm512_set1_epi32(value)); }
inline Ints load_ints(const int32_t* from) { return reinterpret_cast<Ints>(_mm512_loadu_si512(from)); }
inline Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(reinterpret_cast<__m512i>(x)); }
inline UnsignedQuads load_quads(const uint8_t* from) { return {_mm512_loadu_si512(from)}; }
inline SignedQuads broadcast_quad(const int8_t* from) {
  int32_t quad;
  std::memcpy(&quad, from, sizeof(quad));
  return {_mm512_set1_epi32(quad)};
}
inline Ints dot(Ints sums, UnsignedQuads a, SignedQuads b) {
  return reinterpret_cast<Ints>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums), a.bytes, b.bytes));
}

// The nearest whole numbers (of two, the even one) as kFloats bytes; x is within their range.
inline Ints to_ints(Floats x) { return reinterpret_cast<Ints>(_mm512_cvtps_epi32(x)); }
inline void store_bytes(int8_t* to, Ints x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(x)));
}
inline int32_t sum_of_ints(Ints x) { return _mm512_reduce_add_epi32(reinterpret_cast<__m512i>(x)); }

// The pairs (first[i], second[i]) for 2 * kFloats elements; store_interleaved
// undoes the order of the lanes in `even` and `odd`.
struct Interleaved {
  Pairs even, odd;
};
inline Interleaved interleave(const bf16* first, const bf16* second) {
  __m512i a = _mm512_loadu_si512(first), b = _mm512_loadu_si512(second);
  return {reinterpret_cast<Pairs>(_mm512_unpacklo_epi16(a, b)), reinterpret_cast<Pairs>(_mm512_unpackhi_epi16(a, b))};
}
inline void store_interleaved(float* to, Floats even, Floats odd) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  store(to, _mm512_permutex2var_ps(even, first, odd));
  store(to + kFloats, _mm512_permutex2var_ps(even, second, odd));
}

#elif defined(__AVX2__) && defined(__FMA__)

using Floats = __m256;
constexpr int kFloats = 8;

inline Floats set(float value) { return _mm256_set1_ps(value); }
inline Floats load(const float* from) { return _mm256_loadu_ps(from); }
inline void store(float* to, Floats x) { _mm256_storeu_ps(to, x); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }  // b where one is NaN
inline Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }  // b where one is NaN
inline Floats where_at_least(Floats x, Floats least, Floats value) {  // elsewhere, and where x is NaN, 0
  return _mm256_and_ps(_mm256_cmp_ps(x, least, _CMP_GE_OQ), value);
}
inline bool any_above(Floats x, Floats limit) { return _mm256_movemask_ps(_mm256_cmp_ps(x, limit, _CMP_GT_OQ)) != 0; }
inline bool any_equal(Floats x, Floats y) { return _mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_EQ_OQ)) != 0; }
inline float sum(Floats x) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
inline float max_of(Floats x) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

inline Floats load_bf16(const bf16* from) {
  __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline void store_bf16(bf16* to, Floats x) {  // round to nearest, ties to even; NaN stays NaN
  __m256i bits = _mm256_castps_si256(x);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  rounded = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), is_nan);
  __m256i halves = _mm256_permute4x64_epi64(_mm256_packus_epi32(_mm256_srli_epi32(rounded, 16), rounded), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(halves));
}

inline Floats scale_by_power(Floats x, Floats exponent) {  // exponent from -126 up to 127, or x counts as 0
  __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(exponent), _mm256_set1_epi32(127)), 23);
  Floats scaled = x * _mm256_castsi256_ps(power);
  return _mm256_andnot_ps(_mm256_cmp_ps(exponent, set(-126.0f), _CMP_LT_OQ), scaled);
}
inline Floats round_to_int(Floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

// kFloats lanes of two bf16 each, widened when they are loaded.
struct Pairs {
  Floats first, second;
};
using PairBits = __m256i;  // as they lie in memory
inline PairBits low_pairs(PairBits a, PairBits b) { return _mm256_unpacklo_epi32(a, b); }
inline PairBits high_pairs(PairBits a, PairBits b) { return _mm256_unpackhi_epi32(a, b); }
inline PairBits low_twos(PairBits a, PairBits b) { return _mm256_unpacklo_epi64(a, b); }
inline PairBits high_twos(PairBits a, PairBits b) { return _mm256_unpackhi_epi64(a, b); }
inline Pairs widen_pairs(__m256i bits) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)),
          _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xffff0000))))};
}
inline Pairs load_pairs(const bf16* from) {
  return widen_pairs(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline Pairs broadcast_pair(const bf16* from) {
  int32_t pair;
  std::memcpy(&pair, from, sizeof(pair));
  return widen_pairs(_mm256_set1_epi32(pair));
}
inline Floats dot(Floats sums, const Pairs& a, const Pairs& b) {
  return fma(a.second, b.second, fma(a.first, b.first, sums));
}

// kFloats lanes of an int32, and of four bytes each, which are widened when they are loaded: maddubs would saturate.
using Ints = int32_t __attribute__((vector_size(32)));
struct UnsignedQuads {
  __m256i even, odd;
};
struct SignedQuads {
  __m256i even, odd;
};
inline Ints set_ints(int32_t value) { return reinterpret_cast<Ints>(_mm256_set1_epi32(value)); }
inline Floats to_floats(Ints x) { return _mm256_cvtepi32_ps(reinterpret_cast<__m256i>(x)); }
inline UnsignedQuads load_quads(const uint8_t* from) {
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return {_mm256_and_si256(bytes, _mm256_set1_epi16(0xff)), _mm256_srli_epi16(bytes, 8)};
}
inline SignedQuads broadcast_quad(const int8_t* from) {
  int32_t quad;
  std::memcpy(&quad, from, sizeof(quad));
  const __m256i bytes = _mm256_set1_epi32(quad);
  return {_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8), _mm256_srai_epi16(bytes, 8)};
}
inline Ints dot(Ints sums, const UnsignedQuads& a, const SignedQuads& b) {
  return sums + reinterpret_cast<Ints>(_mm256_madd_epi16(a.even, b.even)) +
         reinterpret_cast<Ints>(_mm256_madd_epi16(a.odd, b.odd));
}

// The nearest whole numbers (of two, the even one) as kFloats bytes; x is within their range.
inline Ints to_ints(Floats x) { return reinterpret_cast<Ints>(_mm256_cvtps_epi32(x)); }
inline void store_bytes(int8_t* to, Ints x) {
  const __m256i wide = reinterpret_cast<__m256i>(x);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(words, words));
}
inline int32_t sum_of_ints(Ints x) {
  int32_t total = 0;
  for (int lane = 0; lane < kFloats; ++lane) total += x[lane];
  return total;
}

struct Interleaved {
  Pairs even, odd;
};
inline Interleaved interleave(const bf16* first, const bf16* second) {
  __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(first));
  __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(second));
  return {widen_pairs(_mm256_unpacklo_epi16(a, b)), widen_pairs(_mm256_unpackhi_epi16(a, b))};
}
inline void store_interleaved(float* to, Floats even, Floats odd) {
  store(to, _mm256_permute2f128_ps(even, odd, 0x20));
  store(to + kFloats, _mm256_permute2f128_ps(even, odd, 0x31));
}

#else
#error "these kernels need AVX-512 with bf16, or AVX2 with FMA"
#endif

inline Floats zeros() { return set(0.0f); }

// Up to kFloats elements; the lanes beyond `count` are 0.
inline Floats load_bf16(const bf16* from, int64_t count) {
  if (count >= kFloats) return load_bf16(from);
  bf16 padded[kFloats] = {};
  std::memcpy(padded, from, static_cast<size_t>(count) * sizeof(bf16));
  return load_bf16(padded);
}
inline void store_bf16(bf16* to, Floats x, int64_t count) {
  if (count >= kFloats) return store_bf16(to, x);
  bf16 padded[kFloats];
  store_bf16(padded, x);
  std::memcpy(to, padded, static_cast<size_t>(count) * sizeof(bf16));
}

// What is left of x after being stored as bf16.
inline Floats round_to_bf16(Floats x) {
  bf16 stored[kFloats];
  store_bf16(stored, x);
  return load_bf16(stored);
}

// e^x to about 1 unit in the last place: Cody and Waite's reduction, a Taylor polynomial on [-ln 2 / 2, ln 2 / 2].
// Below -104, and for -inf, it is 0; beyond 88.3 it stays at e^88.3.
inline Floats exp(Floats x) {
  x = min(set(88.3f), max(set(-104.0f), x));  // in this order a NaN stays
  Floats exponent = round_to_int(x * set(1.44269504f));
  Floats rest = fma(exponent, set(-0.693359375f), x);
  rest = fma(exponent, set(2.12194440e-4f), rest);
  constexpr float kCoefficients[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  Floats polynomial = zeros();
  for (float coefficient : kCoefficients) polynomial = fma(polynomial, rest, set(coefficient));
  return scale_by_power(polynomial, exponent);
}

}  // namespace baton
