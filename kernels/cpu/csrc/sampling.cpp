// From logits to tokens, by inverting the CDF of the filtered distribution in order of token id.
//
// Nothing is sorted. bf16 has 65,536 values, so the edge of top_k or top_p is found by cutting their range into four
// again and again: eight passes over a row that lies in the cache, each of which counts the tokens, or adds up the
// weights, from three values on.

#include <algorithm>
#include <cmath>

#include "parallel.h"
#include "simd.h"

namespace baton {

// The fields of `kernels.reference.SamplingInputs`, in their order: the caller passes an array of addresses.
struct SamplingInputs {
  const float* temperatures;
  const int32_t* top_ks;
  const float* top_ps;
  const float* min_ps;
  const float* uniforms;
  const int32_t* lanes;
};

}  // namespace baton

namespace {

using namespace baton;

constexpr int64_t kPiece = 1024;  // tokens whose weights are summed in float32; the sums of pieces are float64

// One row: what the filters are applied to.
struct Row {
  const bf16* logits;
  const uint16_t* keys;  // the logits in an order-preserving form; -0 is 0
  float* weights;        // e^((logit - largest) / temperature); 0 where dropped, and in the rest of the last vector
  int64_t vocab_size;
};

uint16_t key_of(bf16 logit) {
  if (logit == 0x8000) return 0x8000;
  return static_cast<uint16_t>(logit & 0x8000 ? ~logit : logit | 0x8000);
}

constexpr int kLowestKey = 0x007f, kLargestKey = 0xff80;  // of -inf and inf; NaN have those beyond

float logit_of(int key) {
  return to_float(static_cast<bf16>(key & 0x8000 ? key & 0x7fff : ~key));
}

template <class Value>
struct Three {
  Value first, second, third;
};

// Tokens of each of these keys and above; the keys ascend.
Three<int64_t> count_from(const Row& row, const Three<int>& keys) {
  Three<int64_t> counts{0, 0, 0};
  const Three<uint16_t> from{static_cast<uint16_t>(keys.first), static_cast<uint16_t>(keys.second),
                             static_cast<uint16_t>(keys.third)};
  for (int64_t start = 0; start < row.vocab_size; start += kPiece) {
    const int64_t end = std::min(start + kPiece, row.vocab_size);
    uint16_t first = 0, second = 0, third = 0;
    for (int64_t i = start; i < end; ++i) {
      first = static_cast<uint16_t>(first + (row.keys[i] >= from.first));
      second = static_cast<uint16_t>(second + (row.keys[i] >= from.second));
      third = static_cast<uint16_t>(third + (row.keys[i] >= from.third));
    }
    counts = {counts.first + first, counts.second + second, counts.third + third};
  }
  return counts;
}

// What the tokens of each of these keys and above weigh.
Three<double> weight_from(const Row& row, const Three<int>& keys) {
  const Floats from[3] = {set(logit_of(keys.first)), set(logit_of(keys.second)), set(logit_of(keys.third))};
  Three<double> totals{0.0, 0.0, 0.0};
  for (int64_t start = 0; start < row.vocab_size; start += kPiece) {
    const int64_t end = std::min(start + kPiece, row.vocab_size);
    Floats sums[3] = {zeros(), zeros(), zeros()};
    for (int64_t i = start; i < end; i += kFloats) {
      const Floats logits = load_bf16(row.logits + i, end - i), weights = load(row.weights + i);
      for (int part = 0; part < 3; ++part) sums[part] += where_at_least(logits, from[part], weights);
    }
    totals = {totals.first + double{sum(sums[0])}, totals.second + double{sum(sums[1])},
              totals.third + double{sum(sums[2])}};
  }
  return totals;
}

// What the kept tokens of a piece weigh.
double sum_piece(const Row& row, int64_t start) {
  const int64_t end = std::min(start + kPiece, row.vocab_size);
  Floats total = zeros();
  for (int64_t i = start; i < end; i += kFloats) total += load(row.weights + i);
  return double{sum(total)};
}

// The largest key in [low, high] that has at least `wanted` of what `measure` finds from three keys on; `low` if none.
template <class Measure, class Value>
int last_key(const Row& row, int low, int high, Measure measure, Value wanted) {
  while (low < high) {
    const int step = (high - low + 3) / 4;
    const Three<int> keys{low + step, std::min(low + 2 * step, high), std::min(low + 3 * step, high)};
    const auto found = measure(row, keys);
    if (found.third >= wanted) {
      low = keys.third;
    } else if (found.second >= wanted) {
      low = keys.second;
      high = keys.third - 1;
    } else if (found.first >= wanted) {
      low = keys.first;
      high = keys.second - 1;
    } else {
      high = keys.first - 1;
    }
  }
  return low;
}

// What survives: all tokens above the key `edge`, and of the tokens at it the `kept_at_edge` with the highest ids.
struct Kept {
  int edge;
  int64_t kept_at_edge;
};

Kept apply_top_p(const Row& row, int lowest, int largest, double top_p) {
  const double wanted = top_p * weight_from(row, {lowest, lowest, lowest}).first;
  // A token stays while what is likelier than it weighs less than top_p. So the edge is the last key from which on
  // there is at least that much, and of the tokens at it as many stay as it takes.
  const int edge = last_key(row, lowest, largest, weight_from, wanted);
  const Three<double> weights = weight_from(row, {edge, edge + 1, edge + 1});
  const Three<int64_t> counts = count_from(row, {edge, edge + 1, edge + 1});
  const int64_t at_edge = counts.first - counts.second;
  if (at_edge == 0) return {edge, 0};
  const double each = (weights.first - weights.second) / static_cast<double>(at_edge);
  const double fitting = each > 0.0 ? (wanted - weights.second) / each : static_cast<double>(at_edge);
  if (fitting >= static_cast<double>(at_edge)) return {edge, at_edge};
  return {edge, std::max<int64_t>(static_cast<int64_t>(std::ceil(fitting)), 1)};
}

void drop(const Row& row, const Kept& kept, int largest, float min_p) {
  int64_t at_edge = 0;
  for (int64_t i = 0; i < row.vocab_size; ++i) {
    const bool stays = row.keys[i] >= kept.edge && (row.weights[i] >= min_p || row.keys[i] == largest);
    row.weights[i] = stays ? row.weights[i] : 0.0f;
    at_edge += row.keys[i] == kept.edge;
  }
  int64_t dropped = at_edge - kept.kept_at_edge;
  for (int64_t i = 0; i < row.vocab_size && dropped > 0; ++i)
    if (row.keys[i] == kept.edge) {
      row.weights[i] = 0.0f;
      --dropped;
    }
}

// The first token at which the cumulative weight exceeds the uniform's share of it.
int32_t invert_cdf(const Row& row, double uniform) {
  double whole = 0.0, total = 0.0;
  for (int64_t start = 0; start < row.vocab_size; start += kPiece) whole += sum_piece(row, start);
  const double target = uniform * whole;
  for (int64_t start = 0; start < row.vocab_size; start += kPiece) {
    const double next = total + sum_piece(row, start);
    if (next > target) {
      const int64_t end = std::min(start + kPiece, row.vocab_size);
      int64_t token = start;
      for (int64_t i = start; i < end && total <= target; ++i) {
        if (row.weights[i] > 0.0f) token = i;  // the last of them where rounding lets none exceed the share
        total += double{row.weights[i]};
      }
      return static_cast<int32_t>(token);
    }
    total = next;
  }
  return 0;  // of NaN any token is as good as another, but it must be a token
}

float largest_logit(const bf16* logits, int64_t vocab_size) {
  Floats largest = set(-kInfinity);
  int64_t i = 0;
  for (; i + kFloats <= vocab_size; i += kFloats) largest = max(largest, load_bf16(logits + i));
  float result = max_of(largest);
  for (; i < vocab_size; ++i) result = std::max(result, to_float(logits[i]));
  return result;
}

int32_t likeliest(const bf16* logits, int64_t vocab_size) {
  const float largest = largest_logit(logits, vocab_size);
  for (int64_t i = 0; i < vocab_size; ++i)
    if (to_float(logits[i]) == largest) return static_cast<int32_t>(i);
  return 0;  // as in invert_cdf
}

int32_t draw(const bf16* logits, int64_t vocab_size, const SamplingInputs& inputs, int64_t at) {
  const float temperature = inputs.temperatures[at], top_p = inputs.top_ps[at], min_p = inputs.min_ps[at];
  const int64_t top_k = inputs.top_ks[at];
  thread_local Scratch<uint16_t> key_scratch;
  thread_local Scratch<float> weight_scratch;
  const int64_t padded = (vocab_size + kFloats - 1) / kFloats * kFloats;
  uint16_t* keys = key_scratch.get(vocab_size);
  const Row row{logits, keys, weight_scratch.get(padded), vocab_size};
  for (int64_t i = 0; i < vocab_size; ++i) keys[i] = key_of(logits[i]);
  // Relative to the largest, so that no temperature however low can turn the scores into inf - inf.
  const float largest = largest_logit(logits, vocab_size);
  for (int64_t i = 0; i < vocab_size; i += kFloats) {
    const Floats scores = (load_bf16(logits + i, vocab_size - i) - set(largest)) / set(temperature);
    store(row.weights + i, exp(scores));
  }
  std::fill(row.weights + vocab_size, row.weights + padded, 0.0f);

  const int largest_key = std::min<int>(*std::max_element(keys, keys + vocab_size), kLargestKey);
  int lowest = kLowestKey;
  if (top_k > 0 && top_k < vocab_size) lowest = last_key(row, lowest, largest_key, count_from, top_k);
  Kept kept{lowest, vocab_size};
  if (top_p < 1.0f) kept = apply_top_p(row, lowest, largest_key, static_cast<double>(top_p));
  if (lowest > kLowestKey || top_p < 1.0f || min_p > 0.0f) drop(row, kept, largest_key, min_p);
  return invert_cdf(row, static_cast<double>(inputs.uniforms[at]));
}

}  // namespace

extern "C" void baton_argmax(const bf16* logits, int64_t stride, int32_t* out, int64_t rows, int64_t vocab_size,
                             int threads) {
  parallel_for(rows, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) out[row] = likeliest(logits + row * stride, vocab_size);
  });
}

extern "C" void baton_sample(const bf16* logits, int64_t stride, const SamplingInputs* inputs, int32_t* last_tokens,
                             int32_t* out, int64_t rows, int64_t vocab_size, int threads) {
  parallel_for(rows, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const bf16* scores = logits + row * stride;
      out[row] = inputs->temperatures[row] > 0.0f ? draw(scores, vocab_size, *inputs, row)
                                                  : likeliest(scores, vocab_size);
      last_tokens[inputs->lanes[row]] = out[row];
    }
  });
}
