// top_k, top_p and min_p of one row.
//
// Nothing is sorted. bf16 has 65,536 values, so the edge of top_k or top_p is found by cutting their range into four
// again and again: eight passes over a row that lies in the cache, each of which counts the tokens, or adds up the
// weights, from three values on. Of float32 the upper halves are searched like this, and then the lower halves of the
// tokens that share the edge's upper half: few, as a rule, and gathered.
#pragma once

#include <cmath>

#include "logits.h"
#include "parallel.h"

namespace baton {

// What the filters are applied to: a row, or those of its tokens that share the upper half of their keys. A key is a
// logit in an order-preserving form, in which -0 is 0. A bf16 has no lower half.
template <class Logit>
struct Row {
  const Logit* logits;
  const uint16_t* keys;  // one half of each
  float* weights;        // e^((logit - largest) / temperature); 0 where dropped, and in the rest of the last vector
  int64_t size;
  bool lower = false;    // which half `keys` has
  uint32_t upper = 0;    // with the lower half: the other one, which all of them share, in its place
};

inline uint32_t whole_key_of(float logit) {
  const uint32_t bits = bits_of(logit);
  if (bits == 0x80000000u) return bits;
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
inline uint16_t key_of(float logit) { return static_cast<uint16_t>(whole_key_of(logit) >> 16); }
inline uint16_t key_of(bf16 logit) {
  if (logit == 0x8000) return 0x8000;
  return static_cast<uint16_t>(logit & 0x8000 ? ~logit : logit | 0x8000);
}

constexpr uint32_t kLowestWholeKey = 0x007fffff;  // of -inf
constexpr int kLowestKey = kLowestWholeKey >> 16, kLastKey = 0xffff;

// The least float32 that has this key.
template <class Logit>
float logit_of(const Row<Logit>& row, int key) {
  const uint32_t half = static_cast<uint32_t>(key);
  const uint32_t whole = std::max(row.lower ? row.upper + half : half << 16, kLowestWholeKey);
  float logit;
  from_bits(whole & 0x80000000u ? whole & 0x7fffffffu : ~whole, &logit);
  return logit;
}

template <class Value>
struct Three {
  Value first, second, third;
};

// Tokens of each of these keys and above; the keys ascend.
template <class Logit>
Three<int64_t> count_from(const Row<Logit>& row, const Three<int>& keys) {
  Three<int64_t> counts{0, 0, 0};
  const Three<uint16_t> from{static_cast<uint16_t>(keys.first), static_cast<uint16_t>(keys.second),
                             static_cast<uint16_t>(keys.third)};
  for (int64_t start = 0; start < row.size; start += kPiece) {
    const int64_t end = std::min(start + kPiece, row.size);
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

inline int64_t count_at(const uint16_t* keys, int64_t size, int key) {
  int64_t total = 0;
  for (int64_t start = 0; start < size; start += kPiece) {
    const int64_t end = std::min(start + kPiece, size);
    uint16_t count = 0;
    for (int64_t i = start; i < end; ++i) count = static_cast<uint16_t>(count + (keys[i] == key));
    total += count;
  }
  return total;
}

// What the tokens of each of these keys and above weigh.
template <class Logit>
Three<double> weight_from(const Row<Logit>& row, const Three<int>& keys) {
  const Floats from[3] = {set(logit_of(row, keys.first)), set(logit_of(row, keys.second)),
                          set(logit_of(row, keys.third))};
  Three<double> totals{0.0, 0.0, 0.0};
  for (int64_t start = 0; start < row.size; start += kPiece) {
    const int64_t end = std::min(start + kPiece, row.size);
    Floats sums[3] = {zeros(), zeros(), zeros()};
    for (int64_t i = start; i < end; i += kFloats) {
      const Floats logits = load_logits(row.logits + i, end - i), weights = load(row.weights + i);
      for (int part = 0; part < 3; ++part) sums[part] += where_at_least(logits, from[part], weights);
    }
    totals = {totals.first + double{sum(sums[0])}, totals.second + double{sum(sums[1])},
              totals.third + double{sum(sums[2])}};
  }
  return totals;
}

// What the tokens of this key and above weigh.
template <class Logit>
double weight_from(const Row<Logit>& row, int key) {
  return weight_from(row, Three<int>{key, key, key}).first;
}

// The largest key in [low, high] that has at least `wanted` of what `measure` finds from three keys on; `low` if none.
template <class Logit, class Value>
int last_key(const Row<Logit>& row, int low, int high, Three<Value> (*measure)(const Row<Logit>&, const Three<int>&),
             Value wanted) {
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

// The tokens of a row that share the upper half of their keys, in order of id.
struct Bucket {
  Row<float> row;  // whose keys are the lower halves
  const int32_t* ids;
};

inline Bucket gather(const Row<float>& row, int key) {
  thread_local Scratch<float> logit_scratch, weight_scratch;
  thread_local Scratch<uint16_t> key_scratch;
  thread_local Scratch<int32_t> id_scratch;
  const int64_t size = count_at(row.keys, row.size, key);
  float *logits = logit_scratch.get(size + 1), *weights = weight_scratch.get(size + kFloats);
  uint16_t* keys = key_scratch.get(size + 1);
  int32_t* ids = id_scratch.get(size + 1);
  constexpr int64_t kLooked = 128;  // most of a row has none
  int64_t found = 0;
  for (int64_t start = 0; found < size; start += kLooked) {
    const int64_t end = std::min(start + kLooked, row.size);
    if (count_at(row.keys + start, end - start, key) == 0) continue;
    for (int64_t i = start; i < end; ++i) {
      if (row.keys[i] != key) continue;
      logits[found] = row.logits[i];
      weights[found] = row.weights[i];
      keys[found] = static_cast<uint16_t>(whole_key_of(row.logits[i]));
      ids[found++] = static_cast<int32_t>(i);
    }
  }
  std::fill(weights + size, weights + size + kFloats, 0.0f);
  return {{logits, keys, weights, size, true, static_cast<uint32_t>(key) << 16}, ids};
}

// The key at which a filter cuts. What is above it stays, what is below it is dropped, and of the tokens at it the
// `dropped` with the lowest ids are.
struct Edge {
  int key;
  int64_t dropped;
};

// A token stays while what is likelier than it weighs less than `wanted`. So the edge is the last key from which on
// there is at least that much, and of the tokens at it as many stay as it takes.
template <class Logit>
Edge top_p_edge(const Row<Logit>& row, int lowest, int largest, double wanted) {
  const int key = last_key(row, lowest, largest, weight_from<Logit>, wanted);
  const int64_t at_edge = count_at(row.keys, row.size, key);
  if (at_edge == 0) return {key, 0};
  const Three<double> weights = weight_from(row, Three<int>{key, key + 1, key + 1});
  const double each = (weights.first - weights.second) / static_cast<double>(at_edge);
  const double fitting = each > 0.0 ? (wanted - weights.second) / each : static_cast<double>(at_edge);
  if (fitting >= static_cast<double>(at_edge)) return {key, 0};
  return {key, at_edge - std::max<int64_t>(static_cast<int64_t>(std::ceil(fitting)), 1)};
}

inline void drop(const Row<float>& row, const Bucket& bucket, Edge edge) {
  for (int64_t i = 0; i < bucket.row.size; ++i) {
    const int key = bucket.row.keys[i];
    if (key < edge.key || (key == edge.key && edge.dropped-- > 0)) row.weights[bucket.ids[i]] = 0.0f;
  }
}

// These return the key from which on tokens stay, and drop those at this key that do not; `drop_rest` has to follow.
// `largest` is the key of the likeliest token.
inline int keep_top_k(const Row<bf16>& row, int largest, int64_t top_k) {
  return last_key(row, kLowestKey, largest, count_from<bf16>, top_k);
}
inline int keep_top_k(const Row<float>& row, int largest, int64_t top_k) {
  const int key = last_key(row, kLowestKey, largest, count_from<float>, top_k);
  const Bucket bucket = gather(row, key);
  const int64_t above = count_from(row, {key + 1, key + 1, key + 1}).first;
  drop(row, bucket, {last_key(bucket.row, 0, kLastKey, count_from<float>, top_k - above), 0});
  return key;
}

inline int keep_top_p(const Row<bf16>& row, int lowest, int largest, double top_p) {
  Edge edge = top_p_edge(row, lowest, largest, top_p * weight_from(row, lowest));
  for (int64_t i = 0; edge.dropped > 0; ++i)
    if (row.keys[i] == edge.key) {
      row.weights[i] = 0.0f;
      --edge.dropped;
    }
  return edge.key;
}
inline int keep_top_p(const Row<float>& row, int lowest, int largest, double top_p) {
  const double wanted = top_p * weight_from(row, lowest);
  const int key = last_key(row, lowest, largest, weight_from<float>, wanted);
  const Bucket bucket = gather(row, key);
  if (bucket.row.size == 0) return key;
  const int last = *std::max_element(bucket.row.keys, bucket.row.keys + bucket.row.size);
  drop(row, bucket, top_p_edge(bucket.row, 0, last, wanted - weight_from(row, key + 1)));
  return key;
}

// Drops what is below a key, and what weighs less than min_p; the likeliest weigh 1.
template <class Logit>
void drop_rest(const Row<Logit>& row, int key, float min_p) {
  for (int64_t i = 0; i < row.size; ++i)
    row.weights[i] = row.keys[i] >= key && row.weights[i] >= min_p ? row.weights[i] : 0.0f;
}

}  // namespace baton
