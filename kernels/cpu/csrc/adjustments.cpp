// What a request may ask of its tokens' scores: bans, biases and penalties. The cost of a row is a copy of it, and some
// steps for each token of its sequence.

#include "logits.h"
#include "parallel.h"

namespace baton {

// The fields of `kernels.arguments.Adjustments`, in their order: the caller passes an array of addresses.
struct Adjustments {
  const int32_t* lanes;
  const int32_t* lengths;
  const int32_t* num_prompts;
  const float* presences;
  const float* frequencies;
  const float* repetitions;
  const int32_t* mask_rows;
  const int32_t* masks;
  const int32_t* bias_starts;
  const int32_t* bias_ids;
  const float* biases;
  const int32_t* word_starts;
  const int32_t* word_offsets;
  const int32_t* word_tokens;
};

}  // namespace baton

namespace {

using namespace baton;

constexpr int64_t kMaskBits = 32;
constexpr float kLargest = std::numeric_limits<float>::max();

// Tokens of a sequence.
struct Tokens {
  const int32_t* first;
  const int32_t* end;
};

void apply_mask(float* scores, int64_t vocab_size, const int32_t* mask) {
  for (int64_t start = 0; start < vocab_size; start += kMaskBits) {
    const uint32_t allowed = static_cast<uint32_t>(mask[start / kMaskBits]);
    if (allowed == 0xffffffffu) continue;
    const int64_t count = std::min(kMaskBits, vocab_size - start);
    for (int64_t bit = 0; bit < count; ++bit)
      scores[start + bit] = allowed >> bit & 1 ? scores[start + bit] : -kInfinity;
  }
}

void ban_bad_words(float* scores, const Adjustments& adjustments, int64_t row, const Tokens& generated) {
  for (int32_t word = adjustments.word_starts[row]; word < adjustments.word_starts[row + 1]; ++word) {
    const int32_t* first = adjustments.word_tokens + adjustments.word_offsets[word];
    const int32_t* last = adjustments.word_tokens + adjustments.word_offsets[word + 1] - 1;
    if (last - first <= generated.end - generated.first && std::equal(first, last, generated.end - (last - first)))
      scores[*last] = -kInfinity;
  }
}

// How often each token was met, of a vocabulary; all 0 between two uses.
class Counts {
 public:
  int32_t* get(int64_t vocab_size) {
    if (vocab_size > size_) {
      std::fill_n(scratch_.get(vocab_size), vocab_size, 0);
      size_ = vocab_size;
    }
    return scratch_.get(vocab_size);
  }

 private:
  Scratch<int32_t> scratch_;
  int64_t size_ = 0;
};

// The product as the twin rounds it: the compiler must not fuse it with the subtraction that follows.
float rounded_product(float a, float b) {
  float product = a * b;
  asm("" : "+x"(product));
  return product;
}

void penalize_repetition(float* scores, int64_t vocab_size, float repetition, const Tokens& tokens, int32_t* counts) {
  for (const int32_t* token = tokens.first; token < tokens.end; ++token) {
    if (static_cast<uint32_t>(*token) >= vocab_size || counts[*token]++ > 0) continue;
    const float score = scores[*token];
    scores[*token] = score > 0.0f ? std::min(score / repetition, kLargest) : score * repetition;
  }
  for (const int32_t* token = tokens.first; token < tokens.end; ++token)
    if (static_cast<uint32_t>(*token) < vocab_size) counts[*token] = 0;
}

void penalize_generated(float* scores, int64_t vocab_size, float frequency, float presence, const Tokens& tokens,
                        int32_t* counts) {
  for (const int32_t* token = tokens.first; token < tokens.end; ++token)
    if (static_cast<uint32_t>(*token) < vocab_size) ++counts[*token];
  for (const int32_t* token = tokens.first; token < tokens.end; ++token) {
    if (static_cast<uint32_t>(*token) >= vocab_size || counts[*token] == 0) continue;
    scores[*token] = scores[*token] - rounded_product(frequency, static_cast<float>(counts[*token])) - presence;
    counts[*token] = 0;
  }
}

void adjust(float* scores, int64_t vocab_size, const Adjustments& adjustments, int64_t row, const Tokens& tokens) {
  const int32_t* end_of_prompt = tokens.first + adjustments.num_prompts[row];
  const Tokens generated{std::min(end_of_prompt, tokens.end), tokens.end};
  const int64_t mask_row = adjustments.mask_rows[row], mask_words = (vocab_size + kMaskBits - 1) / kMaskBits;
  if (mask_row >= 0) apply_mask(scores, vocab_size, adjustments.masks + mask_row * mask_words);
  ban_bad_words(scores, adjustments, row, generated);
  for (int32_t i = adjustments.bias_starts[row]; i < adjustments.bias_starts[row + 1]; ++i)
    scores[adjustments.bias_ids[i]] += adjustments.biases[i];
  const float repetition = adjustments.repetitions[row];
  const float frequency = adjustments.frequencies[row], presence = adjustments.presences[row];
  thread_local Counts counts;
  if (repetition != 1.0f) penalize_repetition(scores, vocab_size, repetition, tokens, counts.get(vocab_size));
  if (frequency != 0.0f || presence != 0.0f)
    penalize_generated(scores, vocab_size, frequency, presence, generated, counts.get(vocab_size));
}

}  // namespace

extern "C" void baton_adjust_logits(const void* logits, int64_t stride, int are_float32, const Adjustments* adjustments,
                                    const int32_t* lane_tokens, int64_t lane_stride, float* out, int64_t out_stride,
                                    int64_t rows, int64_t vocab_size, int threads) {
  with_logits(logits, are_float32, [&](const auto* all) {
    parallel_for(rows, threads, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        float* scores = out + row * out_stride;
        const auto* own = all + row * stride;
        int32_t strange = 0;  // as wide as a score, so that the compiler makes vectors of both
        for (int64_t i = 0; i < vocab_size; ++i) {
          scores[i] = to_float(own[i]);
          strange |= !(scores[i] < kInfinity);
        }
        const int32_t* first = lane_tokens + adjustments->lanes[row] * lane_stride;
        adjust(scores, vocab_size, *adjustments, row, {first, first + adjustments->lengths[row]});
        for (int64_t i = 0; strange && i < vocab_size; ++i)
          if (!(to_float(own[i]) < kInfinity)) scores[i] = to_float(own[i]);
      }
    });
  });
}
