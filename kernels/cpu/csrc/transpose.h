// Rows of bf16 pairs to columns of them: the one change of layout that all matrix products here need.
#pragma once

#include "simd.h"

namespace baton {

constexpr int kTile = 16;  // rows, and pairs, that are transposed at once

#if defined(__AVX512BF16__)

// Lane numbers for _mm512_permutex2var_epi32 that exchange, between two vectors `distance` rows apart, the lanes whose
// number has the bit `distance` not set (of the second) and set (of the first).
struct Exchange {
  alignas(64) int32_t upper[4][kTile], lower[4][kTile];
  constexpr Exchange() : upper(), lower() {
    for (int stage = 0; stage < 4; ++stage)
      for (int lane = 0; lane < kTile; ++lane) {
        int distance = 1 << stage;
        bool set = (lane & distance) != 0;
        upper[stage][lane] = set ? kTile + (lane ^ distance) : lane;
        lower[stage][lane] = set ? kTile + lane : lane ^ distance;
      }
  }
};
inline constexpr Exchange kExchange;

// to[pair][row] = from[row][pair] for up to 16 rows and 16 pairs; strides are counted in bf16.
inline void transpose_tile(const bf16* from, int64_t from_stride, int rows, int pairs, bf16* to, int64_t to_stride) {
  __m512i vectors[kTile];
  const __mmask16 loaded = static_cast<__mmask16>((1u << pairs) - 1), stored = static_cast<__mmask16>((1u << rows) - 1);
#pragma GCC unroll 16
  for (int row = 0; row < kTile; ++row)
    vectors[row] = row < rows ? _mm512_maskz_loadu_epi32(loaded, from + row * from_stride) : _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int stage = 0; stage < 4; ++stage) {
    const __m512i upper = _mm512_load_si512(kExchange.upper[stage]), lower = _mm512_load_si512(kExchange.lower[stage]);
#pragma GCC unroll 16
    for (int row = 0; row < kTile; ++row) {
      if (row & (1 << stage)) continue;
      __m512i a = vectors[row], b = vectors[row | (1 << stage)];
      vectors[row] = _mm512_permutex2var_epi32(a, upper, b);
      vectors[row | (1 << stage)] = _mm512_permutex2var_epi32(a, lower, b);
    }
  }
#pragma GCC unroll 16
  for (int pair = 0; pair < kTile; ++pair)
    if (pair < pairs) _mm512_mask_storeu_epi32(to + pair * to_stride, stored, vectors[pair]);
}

#else

inline void transpose_tile(const bf16* from, int64_t from_stride, int rows, int pairs, bf16* to, int64_t to_stride) {
  for (int row = 0; row < rows; ++row)
    for (int pair = 0; pair < pairs; ++pair)
      std::memcpy(to + pair * to_stride + 2 * row, from + row * from_stride + 2 * pair, 2 * sizeof(bf16));
}

#endif

// The 16 pairs (first[i], second[i]).
inline void interleave_panel(const bf16* first, const bf16* second, bf16* to) {
#if defined(__AVX512BF16__)
  const auto widen = [](const bf16* from) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  };
  _mm512_storeu_si512(to, _mm512_or_si512(widen(first), _mm512_slli_epi32(widen(second), 16)));
#else
  for (int i = 0; i < kTile; ++i) {
    to[2 * i] = first[i];
    to[2 * i + 1] = second[i];
  }
#endif
}

// Four pairs of kFloats rows, which lie one after the other: lane `row` of x[pair] is that row's pair. Vectors are put
// together from 16 bytes of each row, which takes half of the shuffles of `transpose_tile`.
template <int RowSize>
[[gnu::always_inline]] inline void transpose_four(const bf16* from, PairBits (&x)[4]) {
  const auto four_of = [&](int row) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + row * RowSize)); };
  PairBits rows[4];
#if defined(__AVX512BF16__)
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm512_inserti32x4(_mm512_castsi128_si512(four_of(i)), four_of(i + 4), 1);
    rows[i] = _mm512_inserti32x4(_mm512_inserti32x4(rows[i], four_of(i + 8), 2), four_of(i + 12), 3);
  }
#else
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) rows[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(four_of(i)), four_of(i + 4), 1);
#endif
  const PairBits low = low_pairs(rows[0], rows[1]), high = high_pairs(rows[0], rows[1]);
  const PairBits low2 = low_pairs(rows[2], rows[3]), high2 = high_pairs(rows[2], rows[3]);
  x[0] = low_twos(low, low2);
  x[1] = high_twos(low, low2);
  x[2] = low_twos(high, high2);
  x[3] = high_twos(high, high2);
}

// to[pair][row] of 16 rows, which lie one after the other.
template <int RowSize>
inline void transpose_rows(const bf16* from, bf16* to) {
  for (int element = 0; element < RowSize; element += 8)
    for (int row = 0; row < kTile; row += kFloats) {
      PairBits x[4];
      transpose_four<RowSize>(from + row * RowSize + element, x);
      for (int pair = 0; pair < 4; ++pair)
        std::memcpy(to + (element / 2 + pair) * 2 * kTile + 2 * row, &x[pair], sizeof(x[pair]));
    }
}

// to[pair][row] for up to 16 rows of `size` elements each, padded with zeros to `padded_size` elements (even) and to
// `padded_rows` rows; so `to` gets padded_size / 2 * padded_rows pairs.
inline void transpose_pairs(const bf16* from, int64_t from_stride, int rows, int64_t size, bf16* to, int padded_rows,
                            int64_t padded_size) {
  const int64_t to_stride = 2 * padded_rows;
  if (rows < padded_rows || size < padded_size)
    std::memset(to, 0, static_cast<size_t>(padded_size * padded_rows) * sizeof(bf16));
  const int64_t whole_pairs = size / 2;
  for (int64_t pair = 0; pair < whole_pairs; pair += kTile) {
    const int pairs = static_cast<int>(whole_pairs - pair < kTile ? whole_pairs - pair : kTile);
    transpose_tile(from + 2 * pair, from_stride, rows, pairs, to + pair * to_stride, to_stride);
  }
  if (size % 2 != 0)
    for (int row = 0; row < rows; ++row) to[whole_pairs * to_stride + 2 * row] = from[row * from_stride + size - 1];
}

}  // namespace baton
