// What products of bf16 and of int8 do differently: how their operands are loaded, and what becomes of their totals.
#pragma once

#include "tiles.h"

namespace baton {

constexpr int kGroup = 256;  // int8 elements of a row that have a scale of their own

#if defined(BATON_TILES)
constexpr int kSizeChunk = 512;  // bf16 that are multiplied at once: 32 KiB of two panels stay in the L1 cache
#else
constexpr int kSizeChunk = 256;  // 16 KiB
#endif

// Rows times columns of bf16: sums[row][column], written or added to.
struct Bf16Sums {
  static constexpr bool kInt8 = false;
  static constexpr int64_t kChunk = kSizeChunk;
  using Totals = Floats;

  float* sums;
  int64_t stride;
  bool add;

  float* at(int64_t row, int64_t column) const { return sums + row * stride + column; }
  int64_t row_bytes() const { return stride * static_cast<int64_t>(sizeof(float)); }
  Bf16Sums from(int64_t row, int64_t column) const { return {at(row, column), stride, add}; }
  Bf16Sums next_chunk() const { return {sums, stride, true}; }

  static Pairs load_columns(const bf16* from) { return load_pairs(from); }
  static Pairs broadcast_row(const bf16* from) { return broadcast_pair(from); }
  Totals start(int64_t row, int64_t column) const { return add ? load(at(row, column)) : zeros(); }
  void finish(int64_t row, int64_t column, Totals totals) const { store(at(row, column), totals); }
};

// Rows of signed times columns of unsigned bytes. A group of a row is quantized to its own scale, and the columns are
// 128 too large, so sums[row][column] gets scale * (total + correction) of each group, the correction being -128 times
// what the row's group sums up to. Totals are exact, also as floats: they stay below 2^24.
struct Int8Sums {
  static constexpr bool kInt8 = true;
  static constexpr int64_t kChunk = kGroup / 2;  // counted in bf16
  using Totals = Ints;

  float* sums;
  int64_t stride;
  const float* scales;         // [groups][num_rows]
  const int32_t* corrections;  // likewise
  int64_t num_rows;
  bool add;

  float* at(int64_t row, int64_t column) const { return sums + row * stride + column; }
  Int8Sums from(int64_t row, int64_t column) const {
    return {at(row, column), stride, scales + row, corrections + row, num_rows, add};
  }
  Int8Sums next_chunk() const { return {sums, stride, scales + num_rows, corrections + num_rows, num_rows, true}; }

  static UnsignedQuads load_columns(const bf16* from) { return load_quads(reinterpret_cast<const uint8_t*>(from)); }
  static SignedQuads broadcast_row(const bf16* from) { return broadcast_quad(reinterpret_cast<const int8_t*>(from)); }
  Totals start(int64_t, int64_t) const { return set_ints(0); }
  void finish(int64_t row, int64_t column, Totals totals) const {
    const Floats scale = set(scales[row]), total = to_floats(totals + set_ints(corrections[row]));
    store(at(row, column), add ? fma(scale, total, load(at(row, column))) : scale * total);
  }
};

}  // namespace baton
