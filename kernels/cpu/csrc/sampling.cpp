// From logits to tokens, by inverting the CDF of the filtered distribution in order of token id.

#include "filters.h"
#include "logits.h"
#include "parallel.h"

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

// As `kernels.reference` has them.
constexpr int32_t kNoToken = -1, kNoNumbers = -2;

// In place of the token of a row whose peak is NaN.
template <class Logit>
int32_t why_none(const Logit* logits, int64_t vocab_size) {
  const auto is_banned = [](Logit logit) { return to_float(logit) == -kInfinity; };
  return std::all_of(logits, logits + vocab_size, is_banned) ? kNoToken : kNoNumbers;
}

// What the kept tokens of a piece weigh.
template <class Logit>
double sum_piece(const Row<Logit>& row, int64_t start) {
  const int64_t end = std::min(start + kPiece, row.size);
  Floats total = zeros();
  for (int64_t i = start; i < end; i += kFloats) total += load(row.weights + i);
  return double{sum(total)};
}

// The first token at which the cumulative weight exceeds the uniform's share of it.
template <class Logit>
int32_t invert_cdf(const Row<Logit>& row, double uniform) {
  double whole = 0.0, total = 0.0;
  for (int64_t start = 0; start < row.size; start += kPiece) whole += sum_piece(row, start);
  const double target = uniform * whole;
  for (int64_t start = 0; start < row.size; start += kPiece) {
    const double next = total + sum_piece(row, start);
    if (next > target) {
      const int64_t end = std::min(start + kPiece, row.size);
      int64_t token = start;
      for (int64_t i = start; i < end && total <= target; ++i) {
        if (row.weights[i] > 0.0f) token = i;  // the last of them where rounding lets none exceed the share
        total += double{row.weights[i]};
      }
      return static_cast<int32_t>(token);
    }
    total = next;
  }
  return 0;  // a uniform of 1 or more, which is none, has to give a token as well
}

// The first token that has this logit; one has.
template <class Logit>
int32_t first_at(const Logit* logits, int64_t vocab_size, float wanted) {
  const Floats sought = set(wanted);
  int64_t i = 0;
  while (i < vocab_size - kFloats && !any_equal(load_logits(logits + i, kFloats), sought)) i += kFloats;
  while (to_float(logits[i]) != wanted) ++i;
  return static_cast<int32_t>(i);
}

template <class Logit>
int32_t draw(const Logit* logits, int64_t vocab_size, float peak, const SamplingInputs& inputs, int64_t at) {
  const float temperature = inputs.temperatures[at], top_p = inputs.top_ps[at], min_p = inputs.min_ps[at];
  const int64_t top_k = inputs.top_ks[at];
  thread_local Scratch<uint16_t> key_scratch;
  thread_local Scratch<float> weight_scratch;
  uint16_t* keys = key_scratch.get(vocab_size);
  const Row<Logit> row{logits, keys, weight_scratch.get(vocab_size + kFloats), vocab_size};
  for (int64_t i = 0; i < vocab_size; ++i) keys[i] = key_of(logits[i]);
  // Relative to the largest, so that no temperature however low can turn the scores into inf - inf.
  for (int64_t i = 0; i < vocab_size; i += kFloats) {
    const Floats scores = (load_logits(logits + i, vocab_size - i) - set(peak)) / set(temperature);
    store(row.weights + i, exp(scores));
  }

  const int largest = key_of(peak);
  int lowest = kLowestKey;
  if (top_k > 0 && top_k < vocab_size) lowest = keep_top_k(row, largest, top_k);
  if (top_p < 1.0f) lowest = keep_top_p(row, lowest, largest, static_cast<double>(top_p));
  if (lowest > kLowestKey || top_p < 1.0f || min_p > 0.0f) drop_rest(row, lowest, min_p);
  return invert_cdf(row, static_cast<double>(inputs.uniforms[at]));
}

template <class Logit>
int32_t likeliest(const Logit* logits, int64_t vocab_size) {
  const float peak = peak_of(logits, vocab_size);
  return std::isnan(peak) ? why_none(logits, vocab_size) : first_at(logits, vocab_size, peak);
}

template <class Logit>
int32_t sample(const Logit* logits, int64_t vocab_size, const SamplingInputs& inputs, int64_t at) {
  const float peak = peak_of(logits, vocab_size);
  if (std::isnan(peak)) return why_none(logits, vocab_size);
  if (inputs.temperatures[at] > 0.0f) return draw(logits, vocab_size, peak, inputs, at);
  return first_at(logits, vocab_size, peak);
}

}  // namespace

extern "C" void baton_argmax(const bf16* logits, int64_t stride, int32_t* out, int64_t rows, int64_t vocab_size,
                             int threads) {
  parallel_for(rows, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) out[row] = likeliest(logits + row * stride, vocab_size);
  });
}

extern "C" void baton_sample(const void* logits, int64_t stride, int are_float32, const SamplingInputs* inputs,
                             int32_t* last_tokens, int32_t* out, int64_t rows, int64_t vocab_size, int threads) {
  with_logits(logits, are_float32, [&](const auto* scores) {
    parallel_for(rows, threads, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        out[row] = sample(scores + row * stride, vocab_size, *inputs, row);
        last_tokens[inputs->lanes[row]] = std::max(out[row], 0);  // stays an index
      }
    });
  });
}
