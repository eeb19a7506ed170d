// What the attention of one query and of many share to the last bit: functions that are compiled once.

#include <algorithm>

#include "attention.h"

namespace baton {

float weigh(float* products, int64_t visible, int64_t padded, float scale, float* maximum, bf16* weights) {
  std::fill(products + visible, products + padded, -kInfinity);
  Floats largest = set(-kInfinity);
  for (int64_t i = 0; i < padded; i += kFloats) largest = max(largest, load(products + i));
  *maximum = scale * max_of(largest);
  Floats total = zeros();
  for (int64_t i = 0; i < padded; i += kFloats) {
    const Floats weight = round_to_bf16(exp(fma(load(products + i), set(scale), set(-*maximum))));
    store_bf16(weights + i, weight);
    total += weight;
  }
  return sum(total);
}

void merge(const Partial& before, const Partial& chunk, int64_t head_dim) {
  const bool is_larger = *chunk.maxima > *before.maxima;
  const float distance = is_larger ? *before.maxima - *chunk.maxima : *chunk.maxima - *before.maxima;
  float shrunk[kFloats];
  store(shrunk, exp(set(distance)));
  const float older = is_larger ? shrunk[0] : 1.0f, newer = is_larger ? 1.0f : shrunk[0];
  if (is_larger) *before.maxima = *chunk.maxima;
  *before.sums = __builtin_fmaf(older, *before.sums, newer * *chunk.sums);
  for (int64_t i = 0; i < head_dim; i += kFloats)
    store(before.values + i, fma(set(older), load(before.values + i), set(newer) * load(chunk.values + i)));
}

void finish(const Partial& whole, int64_t head_dim, bf16* out) {
  const Floats total = set(*whole.sums);
  for (int64_t i = 0; i < head_dim; i += kFloats) store_bf16(out + i, load(whole.values + i) / total);
}

}  // namespace baton
