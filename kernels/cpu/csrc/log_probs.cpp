// Log-probabilities of a given token of each row and of its likeliest ones, under the model itself.

#include <cmath>

#include "logits.h"
#include "parallel.h"

namespace {

using namespace baton;

// ln of the sum of e^logit; NaN for a row that has no token.
template <class Logit>
double log_sum_exp(const Logit* logits, int64_t vocab_size) {
  const float peak = peak_of(logits, vocab_size);
  if (std::isnan(peak)) return double{peak};
  double total = 0.0;
  for (int64_t start = 0; start < vocab_size; start += kPiece) {
    const int64_t end = std::min(start + kPiece, vocab_size);
    Floats weights = zeros();
    for (int64_t i = start; i < end; i += kFloats) weights += exp(load_logits(logits + i, end - i) - set(peak));
    total += double{sum(weights)};
  }
  return double{peak} + std::log(total);
}

// Tokens in descending order of their logits, of equals the lowest id first, if they are put in in order of id. NaN
// ranks with -inf.
struct Ranking {
  float* logits;
  int32_t* ids;
  // Puts a token among those in places 0 to `last` - 1; the one that is moved beyond `last` is gone.
  void put(float logit, int64_t id, int64_t last) {
    if (std::isnan(logit)) logit = -kInfinity;
    int64_t place = last;
    for (; place > 0 && logits[place - 1] < logit; --place) {
      logits[place] = logits[place - 1];
      ids[place] = ids[place - 1];
    }
    logits[place] = logit;
    ids[place] = static_cast<int32_t>(id);
  }
};

// Few tokens are above the last that has a place so far.
template <class Logit>
void rank(const Logit* logits, int64_t vocab_size, int64_t num_top, Ranking ranking) {
  const int64_t last = num_top - 1;
  for (int64_t i = 0; i < num_top; ++i) ranking.put(to_float(logits[i]), i, i);
  for (int64_t start = num_top; start < vocab_size; start += kFloats) {
    const int64_t end = std::min(start + kFloats, vocab_size);
    if (!any_above(load_logits(logits + start, end - start), set(ranking.logits[last]))) continue;
    for (int64_t i = start; i < end; ++i)
      if (to_float(logits[i]) > ranking.logits[last]) ranking.put(to_float(logits[i]), i, last);
  }
}

}  // namespace

extern "C" void baton_log_probs(const void* logits, int64_t stride, int are_float32, const int32_t* token_ids,
                                float* out_chosen, float* out_top, int64_t top_stride, int32_t* out_top_ids,
                                int64_t ids_stride, int64_t rows, int64_t vocab_size, int64_t num_top, int threads) {
  with_logits(logits, are_float32, [&](const auto* all) {
    parallel_for(rows, threads, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const auto* scores = all + row * stride;
        const double whole = log_sum_exp(scores, vocab_size);
        const auto log_prob = [&](int32_t id) { return static_cast<float>(double{to_float(scores[id])} - whole); };
        const bool is_token = token_ids[row] >= 0 && token_ids[row] < vocab_size;
        out_chosen[row] = is_token ? log_prob(token_ids[row]) : std::numeric_limits<float>::quiet_NaN();
        if (num_top == 0) continue;
        float* top = out_top + row * top_stride;
        int32_t* top_ids = out_top_ids + row * ids_stride;
        rank(scores, vocab_size, num_top, {top, top_ids});  // which keeps their logits in `top`
        std::transform(top_ids, top_ids + num_top, top, log_prob);
      }
    });
  });
}
